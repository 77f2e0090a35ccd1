"""The tables of a recipe about training: optimizer, learning rate, the run and its health checks, boxes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from steadyspike.train.recipe.table import LATER, PLACE, REPEAT, Table

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Table):
    """[optimizer]: how weights are updated."""

    name: Literal["sgd", "adam", "adamw", "lamb", "muon"] = Field(default="sgd", description="The optimizer.")
    lr: float = Field(default=0.02, gt=0, description="The learning rate after warm-up.")
    lr_neurons: float | None = Field(
        json_schema_extra=LATER,
        default=None,
        gt=0,
        description="The learning rate of V, tau and other constants of neurons; the default is lr.",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="The momentum of sgd and muon.")
    nesterov: bool = Field(default=False, description="Use Nesterov momentum (sgd only; muon always does).")
    betas: list[Share] = Field(
        default=[0.9, 0.999],
        min_length=2,
        max_length=2,
        description="The decays of the two moments of adam, adamw and lamb.",
    )
    weight_decay: float = Field(default=5e-4, ge=0, description="The weight decay.")
    decay_neurons: bool = Field(
        default=False, description="Apply weight decay to V and tau too, as the paper's released code does."
    )
    decay_norms: bool = Field(default=True, description="Apply weight decay to norms and biases.")
    groups: Literal["decay", "kinds"] = Field(
        default="decay",
        description="How parameters are grouped: by weight decay, or by kind (weights, norms, biases, neurons).",
    )

    @model_validator(mode="after")
    def _possible(self) -> Optimizer:
        owners = {"betas": ("adam", "adamw", "lamb"), "momentum": ("sgd", "muon"), "nesterov": ("sgd",)}
        for key, names in owners.items():
            value = getattr(self, key)
            if self.name not in names and value != type(self).model_fields[key].default:
                owner = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
                raise ValueError(f"optimizer.{key} = {value!r} belongs to {owner}, but optimizer.name = {self.name!r}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov = true needs optimizer.momentum above 0")
        return self


class Schedule(Table):
    """[schedule]: the learning rate. Warm-up changes it after every step, the rest after every epoch (or step)."""

    name: Literal["cosine", "step", "constant"] = Field(default="cosine", description="How the learning rate falls.")
    epochs: int = Field(default=200, ge=1, description="The number of passes over the training data.")
    warmup: int = Field(default=0, ge=0, description="The number of epochs of linear warm-up.")
    warmup_lr: float | None = Field(
        default=None, ge=0, description="The learning rate at which warm-up starts; the default is lr/100."
    )
    warmup_bias_lr: float | None = Field(
        default=None,
        ge=0,
        description="The learning rate at which warm-up of biases starts; needs optimizer.groups = 'kinds'.",
    )
    warmup_momentum: float | None = Field(
        default=None, ge=0, lt=1, description="The momentum at which warm-up starts (sgd only)."
    )
    every: Literal["epoch", "step"] = Field(default="epoch", description="cosine: how often the learning rate changes.")
    cosine_from: Literal["warmup", "start"] = Field(
        default="warmup",
        description="cosine: begins after warm-up, or at the start of training (as in timm).",
    )
    cooldown: int = Field(
        default=0, ge=0, description="cosine: how many of the last epochs keep the learning rate at min_lr."
    )
    min_lr: float = Field(default=0.0, ge=0, description="cosine: the learning rate at the end.")
    milestones: list[Count] = Field(default=[], description="step: epochs after which the learning rate falls.")
    gamma: float = Field(default=0.1, gt=0, lt=1, description="step: the factor by which the learning rate falls.")

    @model_validator(mode="after")
    def _possible(self) -> Schedule:
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule.milestones is empty: schedule.name = 'step' needs the epochs at which lr falls")
        if sorted(set(self.milestones)) != self.milestones:
            raise ValueError(f"schedule.milestones = {self.milestones} is not valid; each must be above the one before")
        if self.warmup >= self.epochs:
            raise ValueError(f"schedule.warmup = {self.warmup} must be below schedule.epochs = {self.epochs}")
        if self.warmup + self.cooldown >= self.epochs:
            raise ValueError(
                f"schedule.cooldown = {self.cooldown} leaves nothing between warm-up and the last of {self.epochs}"
            )
        return self


class Train(Table):
    """[train]: seed, devices, precision, memory, and how often to evaluate and to save."""

    seed: int = Field(
        json_schema_extra=REPEAT,
        default=0,
        ge=0,
        lt=2**63,
        description="The random seed of weights, sample order, augmentation and dropout.",
    )
    devices: int = Field(
        json_schema_extra=PLACE,
        default=1,
        ge=1,
        description="How many GPUs to use, or how many CPU processes if there is no GPU.",
    )
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = Field(
        json_schema_extra=PLACE,
        default="auto",
        description="The device to train on; auto takes a CUDA GPU if there is one. mps is Apple's GPU: neurons run on "
        "the PyTorch reference there, in fp32.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="fp32, or mixed precision (bf16, fp16); neurons are computed in fp32 always."
    )
    clip: float = Field(default=0.0, ge=0, description="Clip the gradient norm to this value; 0 turns clipping off.")
    accumulate: int = Field(
        default=1, ge=1, description="How many forward passes are accumulated into one optimizer step."
    )
    channels_last: bool = Field(
        default=True, description="Keep channels last in memory. Convolutions are faster; results differ by rounding."
    )
    checkpointing: bool = Field(default=False, description="Recompute activations in the backward pass to save memory.")
    events: bool = Field(
        default=True,
        description="On a CPU, let convolutions add only the weights of neurons that fired, if that is faster.",
    )
    save_memory: bool = Field(
        default=False,
        description="Keep spikes as bits for the backward to save memory; the gradients are the same.",
    )
    ema: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="The decay of a moving average of the weights, which is then evaluated; 0 turns it off.",
    )
    ema_ramp: int = Field(
        default=0,
        ge=0,
        description="Multiply the decay of the average by 1 - exp(-step / ema_ramp); 0 means not at all.",
    )
    log_every: int = Field(
        json_schema_extra=PLACE,
        default=50,
        ge=1,
        description="Number of optimizer steps per row of steps.csv.",
    )
    save_every: int = Field(
        json_schema_extra=PLACE,
        default=0,
        ge=0,
        description="Write a checkpoint every so many optimizer steps too; 0 means after every epoch only.",
    )
    eval_every: int = Field(json_schema_extra=REPEAT, default=1, ge=1, description="Evaluate every so many epochs.")
    report: bool = Field(
        json_schema_extra=PLACE, default=False, description="Write report.html too, every few epochs and at the end."
    )
    start: str = Field(
        json_schema_extra=LATER,
        default="",
        description="Start with the weights of a run, or of a name of `steadyspike zoo`; layers that differ are new.",
    )
    loggers: list[Literal["wandb", "mlflow"]] = Field(
        json_schema_extra=PLACE, default=[], description="Also log there; the packages are not installed with this one."
    )


Policy = Literal["warn", "stop", "stop_keep_last_good"]


class Health(Table):
    """[health]: what is watched during training, and what happens then. A run that is stopped still has a result."""

    non_finite: Policy = Field(
        default="stop_keep_last_good", description="What to do if a loss or a membrane potential is not finite."
    )
    silent_layer: Policy = Field(default="warn", description="What to do if a layer does not fire in a whole epoch.")
    collapsed_threshold: Policy = Field(
        default="warn", description="What to do if a threshold falls below min_threshold."
    )
    exploding_gradient: Policy = Field(
        default="warn", description="What to do if a gradient norm exceeds max_gradient."
    )
    worse_than_chance: Policy = Field(
        default="warn",
        description="What to do if the training loss stays above ln(classes), that of a constant guess.",
    )
    patience: int = Field(default=3, ge=1, description="After how many epochs in a row worse_than_chance acts.")
    min_threshold: float = Field(default=1e-3, ge=0, description="The smallest threshold that counts as healthy.")
    max_gradient: float = Field(default=1e6, gt=0, description="The largest gradient norm that counts as healthy.")


class Detection(Table):
    """[detection]: makes a run find boxes. The gains of its loss, and how boxes are chosen and scored."""

    box: float = Field(default=0.05, ge=0, description="The gain of the loss of boxes, 1 - CIoU.")
    obj: float = Field(default=1.0, ge=0, description="The gain of the loss of objectness.")
    cls: float = Field(default=0.5, ge=0, description="The gain of the loss of classes.")
    scale_gains: bool = Field(
        default=True,
        description="Multiply all gains by 3/maps, cls by classes/80 and obj by pixels/640^2, as published.",
    )
    anchor_ratio: float = Field(
        default=4.0, gt=1, description="A box and an anchor match if their sides differ by less than this ratio."
    )
    confidence: float = Field(default=0.001, ge=0, lt=1, description="The smallest score of a box that counts.")
    overlap: float = Field(
        default=0.6, gt=0, le=1, description="The IoU above which the worse of two boxes of a class is dropped (NMS)."
    )
    most: int = Field(default=300, ge=1, description="The largest number of boxes kept in an image.")
    pictures: int = Field(default=8, ge=0, description="The number of validation images in a picture of predictions.")
    pictures_every: int = Field(default=5, ge=1, description="Draw such a picture every so many epochs.")

"""The recipe, typed: one class per TOML table, every key with its meaning and default.

An unknown key is an error. A key whose default is None is left to the thing it configures (a neuron's published
constants, a model's own width, a data set's own split).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_VALIDATION = re.compile(r"none|test|holdout(:(?P<fraction>[0-9.eE+-]+)(:[0-9]+)?)?")


class Table(BaseModel):
    """A TOML table: unknown keys and wrong types are refused, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Model(Table):
    """[model]: the network."""

    name: str = Field(
        default="resnet19", description="A network of steadyspike.models.names(), or your own as 'package.module:Net'."
    )
    width: float | None = Field(default=None, gt=0, le=100, description="Factor on every channel count.")
    options: dict[str, Any] = Field(
        default={}, description="Options of the network, such as head, dropout, connect, init."
    )


class Neuron(Table):
    """[neuron]: a name of the catalogue; keys left out keep that neuron's published value."""

    name: str = Field(default="lif", description="A neuron of steadyspike.nn.neurons.NEURONS.")
    threshold: float | None = Field(default=None, gt=0, description="The threshold V at the start.")
    tau: float | None = Field(default=None, description="Time constant at the start.")
    gradient: Literal["trsg", "rs", "as"] | None = Field(default=None, description="Family of the surrogate gradient.")
    surrogate: Literal["rect", "triangle", "arctan", "sigmoid", "dspike"] | None = Field(
        default=None, description="Shape of the surrogate gradient."
    )
    surrogate_width: float | None = Field(
        default=None, gt=0, description="Width of the surrogate (arctan: its steepness)."
    )
    surrogate_scale: float | None = Field(default=None, gt=0, description="Factor on the surrogate gradient.")
    surrogate_temperature: float | None = Field(default=None, gt=0, description="Temperature of dspike.")
    reset: Literal["soft", "hard", "none"] | None = Field(
        default=None, description="After a spike: subtract V (soft), set to 0 (hard), or neither."
    )
    detach: Literal["none", "spike", "product"] | None = Field(
        default=None, description="Which part of the reset passes no gradient."
    )
    init: Literal["mp", "zero", "imp"] | float | None = Field(
        default=None, description="U[0]: MP-Init, zero, a learned one (imp), or a number."
    )
    init_momentum: float | None = Field(default=None, gt=0, le=1, description="Momentum of MP-Init's running mean.")
    learn: list[Literal["threshold", "tau"]] | None = Field(default=None, description="Which constants are trained.")
    channelwise: bool = Field(default=False, description="One V, tau and mean per channel instead of per layer.")
    strict: bool | None = Field(default=None, description="Fire at M > V instead of M >= V.")
    decay_input: bool | None = Field(default=None, description="Charge with I/tau (true) or I.")
    backend: Literal["auto", "reference", "cpu", "triton"] | None = Field(
        default=None, description="The kernel that runs the neuron; auto takes the fastest that can."
    )
    options: dict[str, Any] = Field(
        default={}, description="Further options of this neuron, such as retention, alpha, imp_scope."
    )

    @model_validator(mode="after")
    def _surrogate_is_named(self) -> Neuron:
        for key in ("surrogate_width", "surrogate_scale", "surrogate_temperature"):
            if getattr(self, key) is not None and self.surrogate is None:
                raise ValueError(f"neuron.{key} needs neuron.surrogate beside it")
        if self.surrogate_temperature is not None and self.surrogate != "dspike":
            raise ValueError("neuron.surrogate_temperature belongs to neuron.surrogate = 'dspike'")
        if self.detach is not None and self.reset is None:
            raise ValueError("neuron.detach needs neuron.reset beside it")
        return self


class Norm(Table):
    """[norm]: the normalisation behind every convolution."""

    name: str = Field(default="tdbn", description="A norm of steadyspike.nn.norm.NORMS.")
    threshold: float | None = Field(default=None, gt=0, description="tdBN's V_th; default: the neuron's first V.")
    alpha: float = Field(default=2**-0.5, gt=0, description="tdBN's factor where two branches are added.")


class Loss(Table):
    """[loss]: a loss on the logits of all time steps, and terms that are added to it."""

    name: str = Field(default="ce", description="A loss of steadyspike.nn.loss.LOSSES: ce, tet, tet-smooth, lts, twin.")
    options: dict[str, Any] = Field(
        default={}, description="Options of the loss, such as label_smoothing, or lamb and means of TET."
    )
    terms: dict[str, dict[str, Any]] = Field(
        default={}, description="[loss.terms.NAME] for names of steadyspike.nn.loss.TERMS: sparsity, rmp, guidance."
    )


Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Data(Table):
    """[data]: the data set, its split and how it is batched."""

    name: str = Field(
        default="digits",
        description="A data set of steadyspike.data.names(), or your own as 'package.module:make_data'.",
    )
    split: str | None = Field(
        default=None, description="official, tebn, tet or random:SEED; left out: the data set's own."
    )
    validation: str = Field(
        default="holdout",
        description="What chooses the best epoch: holdout[:FRACTION[:SEED]], none, or test (the paper's practice).",
    )
    timesteps: int = Field(default=4, ge=1, description="T: frames of a clip, or how long a still image is shown.")
    batch_size: int = Field(
        default=64, ge=1, description="Samples per optimizer step, over all processes and accumulation."
    )
    eval_batch_size: int = Field(
        default=256, ge=1, description="Samples per forward in evaluation, over all processes."
    )
    size: int | list[int] | None = Field(
        default=None, description="Side, or [height, width], where the data set resizes."
    )
    train_samples: int | None = Field(
        default=None, ge=1, description="Train on this many samples only, the same share of every class."
    )
    augment: bool = Field(default=True, description="The data set's own augmentation of training samples.")
    workers: int = Field(default=0, ge=0, description="Processes that decode image files, per process.")
    drop_last: bool = Field(default=False, description="Leave out an epoch's incomplete last batch.")
    options: dict[str, Any] = Field(
        default={}, description="Further options of the data set, such as by, antialias, policy."
    )

    @field_validator("size", mode="before")
    @classmethod
    def _is_a_size(cls, size: Any) -> Any:
        sides = size if isinstance(size, list) and len(size) == 2 else [size]
        if size is not None and not all(type(side) is int and side > 0 for side in sides):
            raise ValueError(
                f"data.size = {size!r} is not valid; it must be a whole number above 0, or two: [height, width]"
            )
        return size

    @field_validator("validation")
    @classmethod
    def _is_a_selection(cls, text: str) -> str:
        found = _VALIDATION.fullmatch(text)
        fraction = found["fraction"] if found else None
        try:
            possible = found is not None and (fraction is None or 0 < float(fraction) < 1)
        except ValueError:
            possible = False
        if not possible:
            raise ValueError(
                f"data.validation = {text!r} is not valid; it must be 'holdout[:FRACTION[:SEED]]' with a fraction "
                "between 0 and 1, 'none' or 'test'"
            )
        return text


class Augment(Table):
    """[augment]: what happens to whole training batches; crops, flips and RandAugment are data.options.augment."""

    mixup: float = Field(default=0.0, ge=0, description="Mixup's alpha: images and labels of two samples; 0: none.")
    cutmix: float = Field(default=0.0, ge=0, description="CutMix's alpha: a box of another image; 0: none.")
    mix_prob: float = Field(default=1.0, ge=0, le=1, description="Share of batches that are mixed.")
    mix_switch: float = Field(default=0.5, ge=0, le=1, description="Share of CutMix where both are used.")
    mix_until: int = Field(default=0, ge=0, description="Epoch from which on nothing is mixed; 0: never.")
    erase: float = Field(default=0.0, ge=0, le=1, description="Share of images that lose a random rectangle.")
    erase_mode: Literal["const", "pixel"] = Field(default="const", description="Filled with 0 or with noise.")
    repeats: int = Field(default=1, ge=1, description="Repeated augmentation: copies of a sample per epoch.")


class Optimizer(Table):
    """[optimizer]: how weights are updated."""

    name: Literal["sgd", "adam", "adamw", "lamb"] = Field(default="sgd", description="Which optimizer.")
    lr: float = Field(default=0.02, gt=0, description="Learning rate after warm-up.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum; sgd only.")
    nesterov: bool = Field(default=False, description="Nesterov momentum; sgd only.")
    betas: list[Share] = Field(
        default=[0.9, 0.999], min_length=2, max_length=2, description="Decays of the two moments; all but sgd."
    )
    weight_decay: float = Field(default=5e-4, ge=0, description="Weight decay.")
    decay_neurons: bool = Field(
        default=False, description="Weight decay on V and tau too, as the paper's released code."
    )
    decay_norms: bool = Field(default=True, description="Weight decay on norms and biases.")

    @model_validator(mode="after")
    def _possible(self) -> Optimizer:
        others = ("betas",) if self.name == "sgd" else ("momentum", "nesterov")
        for key in others:
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                owner = "sgd" if self.name != "sgd" else "adam, adamw and lamb"
                raise ValueError(f"optimizer.{key} = {value!r} belongs to {owner}, but optimizer.name = {self.name!r}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov = true needs optimizer.momentum above 0")
        return self


class Schedule(Table):
    """[schedule]: the learning rate; changes after every epoch (or step), warm-up after every step."""

    name: Literal["cosine", "step", "constant"] = Field(default="cosine", description="How the learning rate falls.")
    epochs: int = Field(default=200, ge=1, description="Passes over the training part.")
    warmup: int = Field(default=0, ge=0, description="Epochs of linear warm-up.")
    warmup_lr: float | None = Field(default=None, ge=0, description="Where warm-up starts; left out: lr/100.")
    every: Literal["epoch", "step"] = Field(default="epoch", description="cosine: how often the learning rate changes.")
    cooldown: int = Field(default=0, ge=0, description="cosine: how many of the last epochs stay at min_lr.")
    min_lr: float = Field(default=0.0, ge=0, description="cosine: the learning rate of the end.")
    milestones: list[Count] = Field(default=[], description="step: epochs after which the learning rate falls.")
    gamma: float = Field(default=0.1, gt=0, lt=1, description="step: the factor by which it falls.")

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
    """[train]: seed, devices, precision, memory, and how often to look and to save."""

    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Decides weights, order of samples, augmentation and dropout."
    )
    devices: int = Field(
        default=1, ge=1, description="Processes of this node: GPUs, or CPU processes where there is no GPU."
    )
    accelerator: Literal["auto", "cpu", "gpu"] = Field(
        default="auto", description="Where it runs; auto: a GPU if there is one."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Mixed precision; neurons stay in fp32."
    )
    clip: float = Field(default=0.0, ge=0, description="Largest gradient norm; 0: no clipping.")
    accumulate: int = Field(default=1, ge=1, description="Forward passes per optimizer step.")
    channels_last: bool = Field(
        default=True, description="Convolutions with channels last in memory: faster, another rounding."
    )
    checkpointing: bool = Field(default=False, description="Recompute activations in the backward pass to save memory.")
    events: bool = Field(
        default=True,
        description="On a CPU, convolutions of spikes use the spikes where that is faster.",
    )
    save_memory: bool = Field(default=False, description="Keep spikes as bits and recompute currents; same gradients.")
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="Decay of an average of the weights that is evaluated; 0: none."
    )
    log_every: int = Field(default=50, ge=1, description="Optimizer steps per row of steps.csv.")
    save_every: int = Field(
        default=0, ge=0, description="Also write a checkpoint every N optimizer steps; 0: per epoch."
    )
    eval_every: int = Field(default=1, ge=1, description="Epochs between evaluations.")


Policy = Literal["warn", "stop", "stop_keep_last_good"]


class Health(Table):
    """[health]: what is watched, and what happens then. A run that is stopped ends as a result, not as an error."""

    non_finite: Policy = Field(default="stop_keep_last_good", description="A loss or a membrane that is not finite.")
    silent_layer: Policy = Field(default="warn", description="A layer without a spike in a whole epoch.")
    collapsed_threshold: Policy = Field(default="warn", description="A threshold below min_threshold.")
    exploding_gradient: Policy = Field(default="warn", description="A gradient norm above max_gradient.")
    worse_than_chance: Policy = Field(
        default="warn", description="Epochs in a row whose training loss is above ln(classes), a constant guess's."
    )
    patience: int = Field(default=3, ge=1, description="How many such epochs are too many.")
    min_threshold: float = Field(default=1e-3, ge=0, description="A threshold below it has collapsed.")
    max_gradient: float = Field(default=1e6, gt=0, description="A gradient norm above it explodes.")


class Paper(Table):
    """[paper]: the published number of this configuration; never inherited."""

    value: float | None = Field(default=None, description="The published number.")
    verdict: str = Field(default="", description="What the paper says where it prints no number, such as 'diverges'.")
    spread: float | None = Field(default=None, ge=0, description="The published +- of it.")
    unit: str = Field(default="% accuracy", description="Of the number.")
    where: str = Field(description="Table, figure or section.")
    note: str = Field(default="", description="What to know when comparing with it.")

    @model_validator(mode="after")
    def _says_something(self) -> Paper:
        if self.value is None and not self.verdict:
            raise ValueError("[paper] needs paper.value or paper.verdict; a place without either is 'shown'")
        return self


class Measured(Table):
    """[[measured]]: a number that this library reached; written by `--record`, never inherited."""

    value: float = Field(description="The number.")
    seed: int = Field(description="train.seed of the run.")
    commit: str = Field(description="Commit of the library; '+changes' where files differed from it.")
    hardware: str = Field(description="Processor or GPUs, and how many.")
    date: str = Field(description="Day on which the run ended.")
    unit: str = Field(default="% accuracy", description="Of the number.")
    note: str = Field(default="", description="How the run ended where that was not after its last epoch.")


class Recipe(Table):
    """One training run."""

    about: str = Field(default="", description="One line for lists; never inherited.")
    shown: str = Field(
        default="",
        description="Where the paper shows this configuration without printing a number (a bar, a curve, a dash).",
    )
    note: str = Field(default="", description="What was assumed because the paper does not say it.")
    model: Model = Model()
    neuron: Neuron = Neuron()
    norm: Norm = Norm()
    loss: Loss = Loss()
    data: Data = Data()
    augment: Augment = Augment()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Train = Train()
    health: Health = Health()
    paper: Paper | None = None
    measured: list[Measured] = []

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        if self.data.batch_size % self.train.accumulate:
            raise ValueError(
                f"data.batch_size = {self.data.batch_size} must be a multiple of "
                f"train.accumulate = {self.train.accumulate}"
            )
        if self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(
                f"schedule.min_lr = {self.schedule.min_lr} must not be above optimizer.lr = {self.optimizer.lr}"
            )
        return self

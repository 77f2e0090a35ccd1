"""The typed form of a recipe: one class per TOML table, every key with its meaning and default.

An unknown key is an error. A key whose default is None is left to what it configures (a neuron's published constants, a
model's own width, a data set's own split).
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from steadyspike.train.recipe.table import PLACE, REPEAT, TEXT, Table
from steadyspike.train.recipe.training_tables import Detection, Health, Optimizer, Schedule, Train

_VALIDATION = re.compile(r"none|test|holdout(:(?P<fraction>[0-9.eE+-]+)(:[0-9]+)?)?")


class Model(Table):
    """[model]: the network."""

    name: str = Field(
        default="resnet19", description="A network of steadyspike.models.names(), or your own as 'package.module:Net'."
    )
    width: float | None = Field(
        default=None, gt=0, le=100, description="Multiplies the number of channels of every layer."
    )
    options: dict[str, Any] = Field(
        default={}, description="Further options of the network, such as head, dropout, connect, init."
    )


class Neuron(Table):
    """[neuron]: the neuron of every layer. Keys that are left out keep the published value of the named neuron."""

    name: str = Field(default="lif", description="A neuron of steadyspike.nn.neurons.NEURONS.")
    threshold: float | None = Field(default=None, gt=0, description="The firing threshold V at the start of training.")
    tau: float | None = Field(
        default=None, description="The membrane time constant tau, in time steps, at the start of training."
    )
    gradient: Literal["trsg", "rs", "as"] | None = Field(
        default=None,
        description="How the surrogate gradient depends on V: trsg (the paper's), rs (relative), as (absolute).",
    )
    surrogate: Literal["rect", "triangle", "arctan", "sigmoid", "dspike"] | None = Field(
        default=None, description="The shape of the surrogate gradient."
    )
    surrogate_width: float | None = Field(
        default=None, gt=0, description="The width of the surrogate gradient (for arctan its steepness)."
    )
    surrogate_scale: float | None = Field(default=None, gt=0, description="Multiplies the surrogate gradient.")
    surrogate_temperature: float | None = Field(
        default=None, gt=0, description="The temperature of the surrogate dspike."
    )
    reset: Literal["soft", "hard", "none"] | None = Field(
        default=None,
        description="What a spike does to the potential: subtract V (soft), set it to 0 (hard), or nothing (none).",
    )
    detach: Literal["none", "spike", "product"] | None = Field(
        default=None, description="Which part of the reset passes no gradient: the spike, the whole product, or none."
    )
    init: Literal["mp", "zero", "imp"] | float | None = Field(
        default=None, description="The initial potential U[0]: MP-Init (mp), zero, learned (imp), or a number."
    )
    init_momentum: float | None = Field(default=None, gt=0, le=1, description="The momentum of MP-Init's running mean.")
    learn: list[Literal["threshold", "tau"]] | None = Field(default=None, description="Which of V and tau are trained.")
    channelwise: bool = Field(
        default=False, description="Use one V, tau and running mean per channel instead of one per layer."
    )
    strict: bool | None = Field(
        default=None, description="Fire if the potential is above V, not already if it is equal to V."
    )
    decay_input: bool | None = Field(default=None, description="Divide the input current by tau (true) or not (false).")
    backend: Literal["auto", "reference", "cpu", "triton"] | None = Field(
        default=None, description="The kernel that computes the neuron; auto uses the fastest one available."
    )
    options: dict[str, Any] = Field(
        default={}, description="Further options of this neuron, such as retention, alpha, imp_scope."
    )

    @model_validator(mode="after")
    def _surrogate_is_named(self) -> Neuron:
        for key in ("surrogate_width", "surrogate_scale", "surrogate_temperature"):
            if getattr(self, key) is not None and self.surrogate is None:
                raise ValueError(f"neuron.{key} needs neuron.surrogate")
        if self.surrogate_temperature is not None and self.surrogate != "dspike":
            raise ValueError("neuron.surrogate_temperature belongs to neuron.surrogate = 'dspike'")
        if self.detach is not None and self.reset is None:
            raise ValueError("neuron.detach needs neuron.reset")
        return self


class Norm(Table):
    """[norm]: the normalisation after every convolution."""

    name: str = Field(default="tdbn", description="A norm of steadyspike.nn.norm.NORMS.")
    threshold: float | None = Field(
        default=None, gt=0, description="V_th of tdBN; the default is the neuron's threshold at the start."
    )
    alpha: float = Field(default=2**-0.5, gt=0, description="tdBN's factor alpha, used if two branches are added.")


class Loss(Table):
    """[loss]: a loss on the logits of all time steps, and terms that are added to it."""

    name: str = Field(default="ce", description="A loss of steadyspike.nn.loss.LOSSES: ce, tet, tet-smooth, lts, twin.")
    options: dict[str, Any] = Field(
        default={}, description="Further options of the loss, such as label_smoothing, or lamb and means of TET."
    )
    terms: dict[str, dict[str, Any]] = Field(
        default={},
        description="Terms added to the loss, one table [loss.terms.NAME] each: sparsity, rmp, guidance.",
    )


class Data(Table):
    """[data]: the data set, its split and how it is batched."""

    name: str = Field(
        default="digits",
        description="A data set of steadyspike.data.names(), or your own as 'package.module:make_data'.",
    )
    split: str | None = Field(
        default=None,
        description="The split: official, tebn, tet or random:SEED; the default depends on the data set.",
    )
    validation: str = Field(
        default="holdout",
        description="Data that chooses the best epoch: holdout[:FRACTION[:SEED]], test (as the paper), none.",
    )
    timesteps: int = Field(
        default=4,
        ge=1,
        description="The number of time steps T: frames of a clip, or how often a still image is repeated.",
    )
    batch_size: int = Field(
        default=64,
        ge=1,
        description="Samples per optimizer step, summed over all processes and accumulated forward passes.",
    )
    eval_batch_size: int = Field(
        json_schema_extra=REPEAT,
        default=256,
        ge=1,
        description="Samples per forward pass in evaluation, summed over all processes.",
    )
    size: int | list[int] | None = Field(
        default=None, description="The size that images or frames are resized to: one side, or [height, width]."
    )
    train_samples: int | None = Field(
        default=None, ge=1, description="Train on this many samples only, equally many of every class."
    )
    augment: bool = Field(default=True, description="Augment training samples as is usual for this data set.")
    workers: int = Field(
        json_schema_extra=PLACE,
        default=0,
        ge=0,
        description="How many processes decode image files for each training process; at most one per core.",
    )
    drop_last: bool = Field(default=False, description="Leave out the last batch of an epoch if it is incomplete.")
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
        match = _VALIDATION.fullmatch(text)
        fraction = match["fraction"] if match else None
        try:
            possible = match is not None and (fraction is None or 0 < float(fraction) < 1)
        except ValueError:
            possible = False
        if not possible:
            raise ValueError(
                f"data.validation = {text!r} is not valid; it must be 'holdout[:FRACTION[:SEED]]' with a fraction "
                "between 0 and 1, 'none' or 'test'"
            )
        return text


class Augment(Table):
    """[augment]: augmentation of whole batches. Crops, flips and RandAugment are set in data.options.augment."""

    mixup: float = Field(
        default=0.0, ge=0, description="alpha of mixup, which blends images and labels of two samples; 0 turns it off."
    )
    cutmix: float = Field(
        default=0.0, ge=0, description="alpha of CutMix, which pastes a box of another image; 0 turns it off."
    )
    mix_prob: float = Field(default=1.0, ge=0, le=1, description="The share of batches that are mixed.")
    mix_switch: float = Field(
        default=0.5, ge=0, le=1, description="The share of CutMix among mixed batches, if mixup and CutMix are both on."
    )
    mix_until: int = Field(default=0, ge=0, description="Stop mixing after this epoch; 0 means never.")
    erase: float = Field(
        default=0.0, ge=0, le=1, description="The share of images in which a random rectangle is erased."
    )
    erase_mode: Literal["const", "pixel"] = Field(
        default="const", description="What an erased rectangle is filled with: zeros (const) or noise (pixel)."
    )
    repeats: int = Field(
        default=1, ge=1, description="Repeated augmentation: how many augmented copies of a sample an epoch holds."
    )


class Paper(Table):
    """[paper]: the published number of this configuration; not inherited."""

    value: float | None = Field(default=None, description="The published number.")
    verdict: str = Field(default="", description="The paper's outcome if it prints no number, such as 'diverges'.")
    spread: float | None = Field(default=None, ge=0, description="Its published spread (the +- behind it).")
    unit: str = Field(default="% accuracy", description="The unit of the number.")
    where: str = Field(description="The table, figure or section that shows it.")
    note: str = Field(default="", description="What to know before comparing with it.")

    @model_validator(mode="after")
    def _says_something(self) -> Paper:
        if self.value is None and not self.verdict:
            raise ValueError("[paper] needs paper.value or paper.verdict; a place without either is 'shown'")
        return self


class Recipe(Table):
    """One training run."""

    about: str = Field(
        json_schema_extra=TEXT, default="", description="One line that describes the recipe in lists; not inherited."
    )
    shown: str = Field(
        json_schema_extra=TEXT,
        default="",
        description="The place in the paper that shows this configuration without a number (a bar, a curve, a dash).",
    )
    note: str = Field(
        json_schema_extra=TEXT, default="", description="What was assumed because the paper does not state it."
    )
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
    detection: Detection | None = None
    paper: Paper | None = Field(json_schema_extra=TEXT, default=None)

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        if self.data.batch_size % self.train.accumulate:
            raise ValueError(
                f"data.batch_size = {self.data.batch_size} must be a multiple of "
                f"train.accumulate = {self.train.accumulate}"
            )
        if self.schedule.warmup_bias_lr is not None and self.optimizer.groups != "kinds":
            raise ValueError("schedule.warmup_bias_lr needs optimizer.groups = 'kinds'")
        if self.schedule.warmup_momentum is not None and self.optimizer.name != "sgd":
            raise ValueError(f"schedule.warmup_momentum belongs to sgd, but optimizer.name = {self.optimizer.name!r}")
        if self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(
                f"schedule.min_lr = {self.schedule.min_lr} must not be above optimizer.lr = {self.optimizer.lr}"
            )
        return self

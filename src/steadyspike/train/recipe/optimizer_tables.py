"""The tables of a recipe for the optimizer and the learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from steadyspike.train.recipe.numbers_of_recipe import Table

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Table):
    """[optimizer]: how weights are updated."""

    name: Literal["sgd", "adam", "adamw", "lamb"] = Field(default="sgd", description="The optimizer.")
    lr: float = Field(default=0.02, gt=0, description="The learning rate after warm-up.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="The momentum of sgd.")
    nesterov: bool = Field(default=False, description="Use Nesterov momentum (sgd only).")
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

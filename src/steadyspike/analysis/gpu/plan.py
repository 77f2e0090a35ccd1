"""`plan`: what a recipe would need on a card: memory, largest batch, time of a step, hours and energy in total."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from steadyspike.analysis.gpu.cards import Card, card
from steadyspike.analysis.gpu.step_costs import StepCosts, step_costs
from steadyspike.analysis.gpu.step_time import SPREAD, StepTime, step_time
from steadyspike.train.build.build_network import build_model
from steadyspike.train.build.data import batch_per_process
from steadyspike.train.build.dry_run import data_shape
from steadyspike.train.recipe.schema import Recipe

# Training samples of the public sets, for recipes whose data is not on this computer.
TRAIN_SAMPLES = {
    "cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "fashion-mnist": 60_000, "nmnist": 60_000,
    "imagenet": 1_281_167, "imagenette": 9_469, "dvs-cifar10": 9_000, "dvs-gesture": 1_176, "coco": 118_287,
}  # fmt: skip
_USABLE = 0.92  # the share of a card's memory that torch and the driver leave for tensors


@dataclass(frozen=True)
class Plan:
    """A recipe on a number of cards of one kind; times are predictions, and `SPREAD` is their range.

    batch: samples of a forward pass on each card, by the recipe
    accumulate: forward passes of an optimizer step, by the recipe
    largest_batch: the largest one that fits on a card
    samples: of an epoch, None if not known
    step: of one card, as if it had one pass
    flops: arithmetic operations of a pass on one card
    """

    card: Card
    cards: int
    precision: str
    batch: int
    accumulate: int
    largest_batch: int
    epochs: int
    samples: int | None
    step: StepTime
    flops: float

    @property
    def fits(self) -> bool:
        return self.batch <= self.largest_batch

    @property
    def passes(self) -> int:
        """Returns the forward passes per optimizer step: those of the recipe, or more if its batch does not fit."""
        return self.accumulate * max(1, math.ceil(self.batch / max(1, self.largest_batch)))

    @property
    def hours(self) -> float | None:
        """The hours of training without reading and augmenting data, and without communication between cards."""
        if self.samples is None or not self.largest_batch:
            return None
        return self.epochs * math.ceil(self.samples / (self.batch * self.cards)) * self.step.total / 3600

    @property
    def kilowatt_hours(self) -> float | None:
        """Returns the energy of the cards at their stated power, without the rest of the computer."""
        return None if self.hours is None else self.hours * self.cards * self.card.watts / 1000

    def __str__(self) -> str:
        low, high = SPREAD
        total, card = self.step.total, self.card
        parts = {name: getattr(self.step, name) for name in ("synapses", "neurons", "norms", "other")}
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in parts.items())
        fits = ""
        if not self.largest_batch:
            fits = "; not even one sample fits"
        elif not self.fits:
            fits = f"; the batch does not fit: accumulate {self.passes} passes"
        work = f"{_short(self.flops / 1e12)} TFLOP" if self.flops >= 1e11 else f"{_short(self.flops / 1e9)} GFLOP"
        step = "step" if self.accumulate == 1 else f"each of {self.accumulate} passes of a step"
        lines = [
            f"{self.cards} x {card.name}: {card.memory:.0f} GB, {card.bandwidth:.0f} GB/s, {self.precision} "
            f"{card.teraflops(self.precision):.0f} TFLOP/s (stated by the vendor)",
            f"memory: {self.step.memory / 1e9:.1f} GB for {self.batch} samples a card; largest batch "
            f"{self.largest_batch:,}{fits}",
            f"{step}: {_short(total * 1e3)} ms ({_short(low * total * 1e3)} to {_short(high * total * 1e3)}): "
            f"{shares}; {work}",
        ]
        if self.hours is not None and self.kilowatt_hours is not None:
            count, unit = (self.hours, "h") if self.hours >= 0.1 else (3600 * self.hours, "s")
            energy = (
                f"{_short(self.kilowatt_hours)} kWh" if self.hours >= 0.1 else f"{1e3 * self.kilowatt_hours:.2g} Wh"
            )
            lines.append(
                f"{self.epochs} epochs of {self.samples:,} samples: {_short(count)} {unit} "
                f"({_short(low * count)} to {_short(high * count)}), {energy} at full power"
            )
        lines.append("not included: reading and augmenting data, communication between cards, evaluation")
        return "\n".join(lines)


def _short(number: float) -> str:
    """Two digits, or all before the point: 0.46, 4.4, 207."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def plan(
    recipe: Recipe,
    card_name: str,
    *,
    cards: int = 1,
    batch: int | None = None,
    samples: int | None = None,
    data_dir: str | Path | None = None,
) -> Plan:
    """Predicts ``recipe`` on ``cards`` cards.

    batch: samples per step over all cards, instead of the recipe's
    samples: of an epoch

    Raises RecipeError if the batch cannot be divided equally, as training does.
    """
    if cards < 1:
        raise ValueError(f"the number of cards must be at least 1, got {cards}")
    on = card(card_name)
    if batch is not None:
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"batch_size": batch})})
    per_card = batch_per_process(recipe, cards)
    classes, channels, size, static = data_shape(recipe, data_dir)
    with torch.device("meta"):
        model = build_model(recipe, num_classes=classes, in_channels=channels, image_size=size)

    def costs(n: int) -> StepCosts:
        shape = (n, channels, *size) if static else (recipe.data.timesteps, n, channels, *size)
        return step_costs(model, torch.empty(shape, device="meta"))

    precision = recipe.train.precision
    counted = costs(per_card)
    # Memory grows linearly with the number of samples, so two sizes define the line.
    two, four = (step_time(costs(n), on, precision).memory for n in (2, 4))
    each = (four - two) / 2
    largest = max(0, int((_USABLE * on.memory * 1e9 - (two - 2 * each)) / each))
    sample_count = samples or recipe.data.train_samples or TRAIN_SAMPLES.get(recipe.data.name)
    step = step_time(counted, on, precision)
    numbers = per_card, recipe.train.accumulate, largest, recipe.schedule.epochs, sample_count
    return Plan(on, cards, precision, *numbers, step, 3 * counted.flops)

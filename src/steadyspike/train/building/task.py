"""A recipe as a module: network, objective, the loss of a batch, and what an epoch is measured by."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.data import DataBundle
from steadyspike.models import SpikingNet
from steadyspike.nn.event_layers import use_dense
from steadyspike.nn.loss import Objective
from steadyspike.train.building.build_network import build_model
from steadyspike.train.building.own_code import check_output, is_own
from steadyspike.train.building.training_objective import build_objective
from steadyspike.train.measure.scores import EpochScores, ScoreSums
from steadyspike.train.recipe import Recipe, RecipeError

Batch = tuple[Tensor, Tensor]


class Task(nn.Module):
    """``Task.for_data(recipe, bundle)``, or with a network and an objective of your own.

    ``task(batch)`` is the training loss of a batch, so that DDP can wrap it; ``eval_step(batch)`` adds a batch to
    ``eval_sums``.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.recipe, self.model, self.objective = recipe, model, objective
        self.train_sums = ScoreSums(1)
        self.eval_sums = ScoreSums(recipe.data.timesteps)
        self.last_eval: EpochScores | None = None
        self.step_losses: deque[Tensor] = deque(maxlen=recipe.train.accumulate)  # of the optimizer step to come

    @classmethod
    def for_data(cls, recipe: Recipe, bundle: DataBundle) -> Task:
        """The recipe's network for this data; its weights come from the recipe's seed, whatever was drawn before."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)
            model = build_model(
                recipe, num_classes=bundle.num_classes, in_channels=bundle.in_channels, image_size=bundle.shape
            )
            objective = cls.make_objective(recipe, bundle)
        if is_own(recipe.model.name) and recipe.detection is None:
            time = () if bundle.timesteps is None else (bundle.timesteps,)
            x = torch.zeros(*time, 2, bundle.in_channels, *bundle.shape)
            check_output(model, x, bundle.num_classes, recipe.data.timesteps, recipe.model.name)
        if recipe.train.channels_last:
            # Of 4-D weights; activations follow them.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if not recipe.train.events:
            use_dense(model)
        if recipe.train.checkpointing:
            from steadyspike.train.building.activation_checkpointing import recompute_blocks

            if not isinstance(model, SpikingNet):
                raise RecipeError("train.checkpointing needs a network of steadyspike.models; use it inside your own")
            recompute_blocks(model)
        if recipe.train.save_memory:
            from steadyspike.nn.memory.pack import save_memory

            save_memory(model)
        return cls(recipe, model, objective)

    @classmethod
    def make_objective(cls, recipe: Recipe, bundle: DataBundle) -> Objective:
        """The recipe's loss for this data."""
        return build_objective(recipe, static=bundle.timesteps is None)

    selected_by = "accuracy"  # what `EpochScores.selects` is called in result.json
    extra_tables: ClassVar[dict[str, tuple[str, ...]]] = {}  # columns of tables beside metrics.csv and the others

    def columns(self, part: str) -> list[str]:
        """The columns of metrics.csv for a part."""
        if part == "train":
            return ["train_loss", "train_accuracy"]
        return [f"{part}_loss", *(f"{part}_accuracy_{t}" for t in range(1, self.recipe.data.timesteps + 1))]

    def extra_rows(self) -> list[tuple[str, dict[str, Any]]]:
        """(table, row) of the epoch that ended, for `extra_tables`."""
        return []

    def title(self, part: str | None) -> str:
        """The display's heading of what follows the loss."""
        steps = self.recipe.data.timesteps
        return "train" + (f"  {part} accuracy after 1..{steps} steps" if part else "")

    def train_line(self, scores: EpochScores) -> str:
        """What the display says of the training part, beside the loss."""
        return f"{scores.selects:5.1f}"

    def loss_of_a_guess(self, classes: int) -> float | None:
        """The loss of a constant guess, below which learning begins; None where there is no such number."""
        return math.log(classes)

    def forward(self, batch: Batch) -> Tensor:
        """The loss to minimise, of one batch; adds to the epoch's training scores."""
        x, target = batch
        outcome = self.objective(self.model, x, target)
        self.train_sums.add(outcome.loss, outcome.logits, target, self.objective.predict)
        self.step_losses.append(outcome.loss.detach())
        return outcome.loss

    def eval_step(self, batch: Batch) -> None:
        """Adds a batch to the scores of the evaluation; in inference mode."""
        x, target = batch
        logits = self.model(x)
        self.eval_sums.add(self.objective.task(logits, target), logits, target, self.objective.predict)

"""A recipe as a module: network, objective, the loss of a batch, and the scores of an epoch."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.data import DataBundle
from steadyspike.data.dataset_catalogue import entry
from steadyspike.models import SpikingNet, model_registry
from steadyspike.nn.event_layers import use_dense
from steadyspike.nn.loss import LOSSES, TERMS, Objective, Term, make_objective
from steadyspike.train.build.build_network import build_model
from steadyspike.train.build.own_code import check_output, is_own
from steadyspike.train.recipe import Recipe, RecipeError
from steadyspike.train.recipe.constructor_options import check_name, check_options, kinds_of, naming
from steadyspike.train.recipe.kinds import imported, kind_named, kind_of
from steadyspike.train.watch.scores import EpochScores, ScoreSums

Batch = tuple[Tensor, Tensor]


class Task(nn.Module):
    """Use ``Task.for_data(recipe, bundle)``, or your own network and objective.

    ``task(batch)`` is the training loss of a batch, so that DDP can wrap it. ``eval_step(batch)`` adds a batch to
    ``eval_sums``.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.recipe, self.model, self.objective = recipe, model, objective
        self.train_sums: Any = ScoreSums(1)
        self.eval_sums: Any = None  # set by `for_data` and `evaluate_part`
        self.last_eval: EpochScores | None = None
        self.step_losses: deque[Tensor] = deque(maxlen=recipe.train.accumulate)  # losses of the next optimizer step

    @classmethod
    def for_data(cls, recipe: Recipe, bundle: DataBundle) -> Task:
        """Builds the recipe's network for this data.

        Its weights come from the recipe's seed and do not depend on numbers drawn before.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)
            model = build_model(
                recipe, num_classes=bundle.num_classes, in_channels=bundle.in_channels, image_size=bundle.shape
            )
            objective = cls.make_objective(recipe, bundle)
        if is_own(recipe.model.name):
            time = () if bundle.timesteps is None else (bundle.timesteps,)
            cls.check_model(recipe, model, torch.zeros(*time, 2, bundle.in_channels, *bundle.shape), bundle.num_classes)
        if recipe.train.channels_last:
            # For 4-D weights; activations follow them.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if not recipe.train.events:
            use_dense(model)
        if recipe.train.checkpointing:
            from steadyspike.train.build.build_network import recompute_blocks

            if not isinstance(model, SpikingNet):
                raise RecipeError("train.checkpointing needs a network of steadyspike.models; use it inside your own")
            recompute_blocks(model)
        if recipe.train.save_memory:
            from steadyspike.nn.memory.pack import save_memory

            save_memory(model)
        task = cls(recipe, model, objective)
        task.eval_sums = task.new_sums(bundle)
        return task

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raises an error if the recipe's tables do not belong together; data and network were checked before."""

    @classmethod
    def check_model(cls, recipe: Recipe, model: nn.Module, x: Tensor, classes: int) -> None:
        """Raises an error if the output of the user's network does not match the task."""
        check_output(model, x, classes, recipe.data.timesteps, recipe.model.name)

    @classmethod
    def dry_loss(cls, recipe: Recipe, model: nn.Module, x: Tensor, classes: int, static: bool) -> Tensor:
        """Returns the loss of a batch of two samples of noise, with made-up targets."""
        return build_objective(recipe, static=static)(model, x, torch.tensor([0, classes - 1])).loss

    @classmethod
    def make_objective(cls, recipe: Recipe, bundle: DataBundle) -> Objective:
        """Builds the recipe's loss for this data."""
        return build_objective(recipe, static=bundle.timesteps is None)

    selected_by = "accuracy"  # name of `EpochScores.selects` in result.json
    extra_tables: ClassVar[dict[str, tuple[str, ...]]] = {}  # columns of further tables, by file name
    smallest_image: ClassVar[int] = 16  # sides of a dry run's images are multiples of this number

    def new_sums(self, bundle: DataBundle) -> Any:
        """Returns the empty sums to which an evaluation adds its scores."""
        return ScoreSums(self.recipe.data.timesteps)

    def observers(self, session: Any) -> list[Any]:
        """Returns additional observers of a run's epochs in its first process, such as a writer of pictures."""
        return []

    def columns(self, part: str) -> list[str]:
        """Returns the columns of metrics.csv for a part."""
        if part == "train":
            return ["train_loss", "train_accuracy"]
        return [f"{part}_loss", *(f"{part}_accuracy_{t}" for t in range(1, self.recipe.data.timesteps + 1))]

    def extra_rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns (table, row) of the epoch that ended, for `extra_tables`."""
        return []

    def title(self, part: str | None) -> str:
        """Returns the display's heading for the column after the loss."""
        steps = self.recipe.data.timesteps
        return "train" + (f"  {part} accuracy after 1..{steps} steps" if part else "")

    def train_line(self, scores: EpochScores) -> str:
        """Returns what the display shows of the training part in addition to the loss."""
        return f"{scores.selects:5.1f}"

    def loss_of_a_guess(self, classes: int) -> float | None:
        """The loss of a constant guess, which a learning network must go below; None if there is no such number."""
        return math.log(classes)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss to minimise, of one batch; adds to the epoch's training scores."""
        x, target = batch
        outcome = self.objective(self.model, x, target)
        self.train_sums.add(outcome.loss, outcome.logits, target, self.objective.predict)
        self.step_losses.append(outcome.loss.detach())
        return outcome.loss

    def eval_step(self, batch: Batch) -> None:
        """Adds a batch to the scores of the evaluation, in inference mode."""
        x, target = batch
        logits = self.model(x)
        self.eval_sums.add(self.objective.task(logits, target), logits, target, self.objective.predict)


def check_task(recipe: Recipe) -> type[Task]:
    """Returns the task class of a recipe; raises RecipeError if its data, network or tables belong to another kind."""
    kind = kind_of(recipe)
    if not is_own(recipe.data.name) and (other := entry(recipe.data.name)[1].task) != kind.name:
        data_kind = kind_named(other)
        text = f"needs {data_kind.needs}" if data_kind.needs else f"is for {other}"
        if kind.needs:
            text = f"has {data_kind.finds} and no {kind.finds}, so there cannot be {kind.needs}"
        raise RecipeError(f"data.name = {recipe.data.name!r} {text}")
    if not is_own(recipe.model.name) and recipe.model.name in model_registry.names():
        other = model_registry.entry(recipe.model.name).task
        if other != kind.name:
            raise RecipeError(f"model.name = {recipe.model.name!r} is a network for {other}")
    task: type[Task] = imported(kind.task)
    task.check(recipe)
    return task


def task_for(recipe: Recipe, bundle: DataBundle) -> Task:
    """Builds the task of a recipe with its network for this data."""
    return check_task(recipe).for_data(recipe, bundle)


def build_objective(recipe: Recipe, *, static: bool) -> Objective:
    """Builds [loss] with its terms; ``static``: batches are still images [B, ...]."""
    check_name(recipe.loss.name, LOSSES, "loss.name")
    check_options(recipe.loss.options, kinds_of(LOSSES[recipe.loss.name]), "loss.options")
    terms: dict[str, Term] = {}
    for name, options in recipe.loss.terms.items():
        check_name(name, TERMS, "loss.terms")
        check_options(options, kinds_of(TERMS[name]), f"loss.terms.{name}")
        for key in ("weight", "start", "ramp_epochs"):
            if options.get(key, 0) < 0:
                raise RecipeError(f"loss.terms.{name}.{key} = {options[key]} is not valid; it must not be below 0")
        with naming(f"loss.terms.{name}", options):
            terms[name] = TERMS[name](**options)
    with naming("loss.options", recipe.loss.options):
        objective = make_objective(recipe.loss.name, terms, batch_dim=0 if static else 1, **recipe.loss.options)
    for name, term in objective.terms.items():
        assert isinstance(term, Term)
        if recipe.train.checkpointing and term.records:
            raise RecipeError(
                f"loss.terms.{name} reads layers that would be recomputed; use train.checkpointing = false "
                "(train.save_memory = true works)"
            )
    return objective

"""The state of one run, which its observers share, and the exception that ends a run early."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from steadyspike.data import DataBundle
from steadyspike.train.build.data import RunData
from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.build.task import Task, task_for
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.tables import Extent, Table
from steadyspike.train.files.weights import split_warning, start_from
from steadyspike.train.recipe import Recipe
from steadyspike.train.recipe.identity import fingerprint
from steadyspike.train.state.processes import Processes
from steadyspike.train.state.signals import Signals
from steadyspike.train.state.weight_average import WeightAverage
from steadyspike.train.watch.layers import GradientWatch, LayerRow, LayerWatch, layer_rows
from steadyspike.train.watch.scores import EpochScores


class EndOfRun(Exception):
    """Ends a run before its last epoch; ``status`` is written to result.json.

    present: the result has the current weights, not those of the last checkpoint
    """

    def __init__(self, status: str, message: str, *, layer: str | None = None, present: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.layer, self.present = status, message, layer, present


class Best(NamedTuple):
    """The best epoch so far, counted from 1; 0 if there is none yet.

    accuracy: or another measure that selects the epoch
    loss: of the same evaluation; it decides between equal accuracies
    """

    epoch: int = 0
    accuracy: float = -1.0
    loss: float = math.inf

    def or_better(self, epoch: int, scores: EpochScores) -> Best:
        """Returns the better of the two: the higher accuracy; if equal, the lower loss.

        If equal too, the later epoch.
        """
        loss = scores.loss if math.isfinite(scores.loss) else math.inf
        return max(self, Best(epoch, scores.selects, loss), key=lambda best: (best.accuracy, -best.loss, best.epoch))


class Step(NamedTuple):
    """The last optimizer step.

    loss: mean over accumulation and processes
    gradient: norm over all parameters
    norms: per group of `GradientWatch`
    bad_loss: whether the loss of any process was not finite
    stop_asked: whether any process has got a signal
    """

    loss: float = math.nan
    gradient: float = math.nan
    norms: tuple[float, ...] = ()
    bad_loss: bool = False
    stop_asked: bool = False


@dataclass
class Session:
    """One run in one process: the values that the loop changes and observers read.

    epoch: of the current or next step, from 0
    batch: forward passes made in this epoch
    steps: optimizer steps made
    """

    recipe: Recipe
    folder: RunFolder
    task: Task
    data: RunData
    processes: Processes
    device: torch.device
    watch: LayerWatch
    gradients: GradientWatch
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    scaler: torch.amp.GradScaler
    average: WeightAverage | None = None
    tables: dict[str, Table] = field(default_factory=dict)  # empty in all processes but the first
    epoch: int = 0
    batch: int = 0
    steps: int = 0
    saved_step: int = 0  # `steps` of the last checkpoint
    best: Best = field(default_factory=Best)
    resumed: dict[str, Any] | None = None  # the checkpoint to continue from, until it is restored
    losses: list[float] = field(default_factory=list)  # losses since the last row of steps.csv
    lost_epochs: int = 0  # epochs in a row that are worse than a constant guess
    inputs: Any = None  # the last training batch
    step: Step = field(default_factory=lambda: Step())
    rows: list[LayerRow] = field(default_factory=list)  # layers in the last finished epoch
    train_scores: EpochScores | None = None
    warned: set[str] = field(default_factory=set)  # kinds of findings reported in this epoch
    messages: list[str] = field(default_factory=list)  # health messages for the display
    extents: dict[str, Extent] = field(default_factory=dict)  # of the tables, at the end of the run
    signals: Signals = field(default_factory=Signals)

    @classmethod
    def new(cls, recipe: Recipe, folder: RunFolder, data: RunData, processes: Processes | None = None) -> Session:
        """Makes the network and everything else that a new run needs."""
        task = task_for(recipe, data.bundle).to(data.device)
        started: list[str] = []
        if source := recipe.train.start:
            started.append(start_from(task.model, source))
            if (warning := split_warning(source, data.bundle.split)) is not None:
                started.append(warning)
        optimizer = build_optimizer(recipe.optimizer, task.model)
        session = cls(
            recipe, folder, task, data, processes or Processes(), data.device,
            watch=LayerWatch(task.model, recipe.data.timesteps),
            gradients=GradientWatch(task.model),
            optimizer=optimizer,
            schedule=build_schedule(recipe, optimizer, steps_per_epoch(recipe, data)),
            scaler=torch.amp.GradScaler(data.device.type, enabled=recipe.train.precision == "fp16"),
            average=WeightAverage(task.model, recipe.train.ema, recipe.train.ema_ramp) if recipe.train.ema else None,
        )  # fmt: skip
        session.messages += started
        return session

    @property
    def bundle(self) -> DataBundle:
        return self.data.bundle

    @property
    def batches(self) -> int:
        """Returns the forward passes of an epoch in this process."""
        return len(self.data.train_loader)

    @property
    def epochs(self) -> int:
        return self.recipe.schedule.epochs

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.recipe, self.data)

    def rate_of(self, step: int) -> float:
        """Returns the learning rate of optimizer step ``step`` (from 1); the schedule itself has already advanced."""
        return float(self.optimizer.param_groups[0]["initial_lr"] * self.schedule.lr_lambdas[0](step - 1))

    def identity(self) -> dict[str, Any]:
        """Returns the values that a checkpoint and the run that continues it must share."""
        return {
            "recipe": fingerprint(self.recipe),
            "split": self.bundle.split.fingerprint,
            "processes": self.processes.count,
        }

    def accumulators(self) -> dict[str, Any]:
        """Returns the sums of the epoch so far in this process."""
        return {
            "scores": self.task.train_sums.values.cpu(),
            "active": self.watch.active.cpu(),
            "gradients": list(self.gradients.sums),
            "gradient_steps": self.gradients.steps,
            "losses": list(self.losses),
            "warned": sorted(self.warned),
        }

    def restore_accumulators(self, state: dict[str, Any]) -> None:
        self.task.train_sums.values = state["scores"].clone()
        self.watch.active = state["active"]
        self.gradients.sums = list(state["gradients"])
        self.gradients.steps = int(state["gradient_steps"])
        self.losses, self.warned = list(state["losses"]), set(state["warned"])

    def start_epoch(self) -> None:
        """Sets all sums to zero."""
        self.task.train_sums.reset()
        self.watch.reset()
        self.gradients.reset()
        self.task.last_eval = None
        self.warned = set()

    def close_epoch(self) -> None:
        """Combines the sums of all processes."""
        self.train_scores = self.task.train_sums.scores()
        self.rows = layer_rows(self.watch, self.gradients)


def steps_per_epoch(recipe: Recipe, data: RunData) -> int:
    """Returns the optimizer steps of an epoch; the last one may have fewer accumulated passes."""
    return -(-len(data.train_loader) // recipe.train.accumulate)


class Observer:
    """Observes a run while it trains; a subclass overrides the methods that it needs. It must not change training."""

    def start(self) -> None:
        """Called once, before the first step, when the state of a continued run is restored."""

    def after_step(self) -> None:
        """Called after every optimizer step."""

    def before_evaluation(self) -> None:
        """Called before the evaluation of an epoch, if there is one."""

    def after_epoch(self) -> None:
        """Called after every epoch and its evaluation; ``session.epoch`` is still that of the epoch that ended."""

    def close(self, failed: bool) -> None:
        """Called once at the end; ``failed``: because of an error, or because the run was ended early."""

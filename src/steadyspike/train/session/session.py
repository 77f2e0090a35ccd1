"""The state that the callbacks of one run share, and the exception that ends a run early."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steadyspike.data import DataBundle
from steadyspike.train.building.lightning_data import SpikingData
from steadyspike.train.building.lightning_task import SpikingTask
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.same_recipe import fingerprint
from steadyspike.train.files.tables import Extent
from steadyspike.train.measure.firing_rates import LayerRow, LayerWatch
from steadyspike.train.measure.gradients import GradientWatch
from steadyspike.train.measure.scores import EpochScores
from steadyspike.train.recipe import Recipe
from steadyspike.train.session.signals import Signals
from steadyspike.train.session.weight_average import WeightAverage


class EndOfRun(Exception):
    """Ends a run before its last epoch; ``status`` is written to result.json.

    present: the result has the weights of this moment, not those of the last checkpoint.
    """

    def __init__(self, status: str, message: str, *, layer: str | None = None, present: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.layer, self.present = status, message, layer, present


@dataclass
class Best:
    """The best epoch so far, counted from 1; 0 if there is none yet. accuracy: or what else selects it."""

    epoch: int = 0
    accuracy: float = -1.0


class Step(NamedTuple):
    """The last optimizer step.

    loss: mean over accumulation and processes; gradient: norm over all parameters; norms: per group of
    `GradientWatch`; bad_loss: whether the loss of any process was not finite; stop_asked: whether a signal has come to
    any process.
    """

    loss: float = math.nan
    gradient: float = math.nan
    norms: tuple[float, ...] = ()
    bad_loss: bool = False
    stop_asked: bool = False


@dataclass
class Session:
    """One run in one process."""

    recipe: Recipe
    folder: RunFolder
    task: SpikingTask
    data: SpikingData
    watch: LayerWatch
    gradients: GradientWatch
    average: WeightAverage | None = None
    best: Best = field(default_factory=Best)
    resumed: dict[str, Any] | None = None  # the checkpoint to continue from, until it is restored
    continued: bool = False  # whether this run continues from a checkpoint
    losses: list[float] = field(default_factory=list)  # of the optimizer steps since the last row of steps.csv
    lost_epochs: int = 0  # in a row, worse than a constant guess
    step: Step = field(default_factory=lambda: Step())
    rows: list[LayerRow] = field(default_factory=list)  # of the last finished epoch
    train_scores: EpochScores | None = None
    warned: set[str] = field(default_factory=set)  # kinds of findings reported in this epoch
    messages: list[str] = field(default_factory=list)  # of health, for the display
    extents: dict[str, Extent] = field(default_factory=dict)  # of the tables, when the run has ended
    signals: Signals = field(default_factory=Signals)

    @property
    def bundle(self) -> DataBundle:
        return self.data.bundle

    def identity(self, processes: int) -> dict[str, Any]:
        """What a checkpoint must share with the run that continues it."""
        return {
            "recipe": fingerprint(self.recipe),
            "split": self.bundle.split.fingerprint,
            "processes": processes,
        }

    def accumulators(self) -> dict[str, Any]:
        """Sums of the epoch so far in this process."""
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
        """All sums to zero."""
        self.task.train_sums.reset()
        self.watch.reset()
        self.gradients.reset()
        self.task.last_eval = None
        self.warned = set()

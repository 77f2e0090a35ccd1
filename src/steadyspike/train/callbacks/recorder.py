"""Writes what an epoch measured: CSV tables and TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.building.lightning_task import SpikingTask
from steadyspike.train.callbacks.health_policy import COLUMNS as HEALTH_COLUMNS
from steadyspike.train.files.loggers import Loggers
from steadyspike.train.files.tables import Extent, Table
from steadyspike.train.files.tensorboard import Board
from steadyspike.train.internals import rate_of_step
from steadyspike.train.measure.firing_rates import layer_rows
from steadyspike.train.measure.membranes import MembraneWatch
from steadyspike.train.session.session import Session

TABLES = ("metrics", "layers", "steps", "health")
LAYER_COLUMNS = ("rate", "silent", "threshold", "tau", "running_mean", "gradient")


def table_names(task: SpikingTask) -> set[str]:
    """Names of the tables that a run of this task writes."""
    return {*TABLES, *task.extra_tables}


def open_tables(root: Path, task: SpikingTask, part: str | None, extents: dict[str, Extent] | None) -> dict[str, Table]:
    """The tables of `table_names`; ``extents`` of a checkpoint cut them back to where it was taken."""
    steps = task.recipe.data.timesteps
    evaluated = [] if part is None else task.columns(part)
    columns: dict[str, tuple[str, ...]] = {
        "metrics": ("epoch", "step", "lr", *task.columns("train"), *evaluated),
        "layers": ("epoch", "layer", *LAYER_COLUMNS, *(f"rate_{t}" for t in range(1, steps + 1))),
        "steps": ("step", "epoch", "lr", "loss", "gradient"),
        "health": HEALTH_COLUMNS,
        **task.extra_tables,
    }  # fmt: skip
    return {
        name: Table(root / f"{name}.csv", names, None if extents is None else extents[name])
        for name, names in columns.items()
    }


class Recorder(Callback):
    """Writes a row of steps.csv every ``log_every`` optimizer steps, and the rows of an epoch at its end.

    Only the first process writes; all of them take part in the sums.
    """

    def __init__(self, session: Session, tables: dict[str, Table], board: Path | None) -> None:
        self.session, self.tables, self._folder = session, tables, board
        self._board: Board | None = None
        self._loggers: Loggers | None = None
        self._membranes: MembraneWatch | None = None
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step
        if self._folder is not None:
            self._board = Board(self._folder, trainer.global_step + 1)
            self._loggers = Loggers(self.session.recipe, self.session.folder.root, self.session.messages.append)
            self._membranes = MembraneWatch(self.session.task.model)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.session.start_epoch()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        session = self.session
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._step % session.recipe.train.log_every == 0 and session.losses:
            loss = sum(session.losses) / len(session.losses)
            session.losses = []
            if self.tables:
                row = {"lr": rate_of_step(trainer, self._step), "loss": loss, "gradient": session.step.gradient}
                self.tables["steps"].add(step=self._step, epoch=trainer.current_epoch + 1, **row)
                self._scalars("step", row, self._step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session, part = self.session, self.session.bundle.selection_part
        session.train_scores = session.task.train_sums.scores()
        session.rows = layer_rows(session.watch, session.gradients)
        epoch = trainer.current_epoch + 1
        row: dict[str, Any] = {
            "lr": rate_of_step(trainer, self._step),
            **session.train_scores.cells("train"),
        }
        scores = session.task.last_eval
        if scores is not None and part is not None:
            row |= scores.cells(part)
        if self.tables:
            for name, extra in session.task.extra_rows():
                self.tables[name].add(epoch=epoch, **extra)
            self.tables["metrics"].add(epoch=epoch, step=trainer.global_step, **row)
            self._scalars("epoch", row, trainer.global_step)
            for layer in session.rows:
                values = {column: getattr(layer, column) for column in LAYER_COLUMNS}
                rates = {f"rate_{t}": r for t, r in enumerate(layer.rates, 1)}
                self.tables["layers"].add(epoch=epoch, layer=layer.layer, **values, **rates)
                self._scalars(f"layers/{layer.layer}", {**values, **rates}, trainer.global_step)
            if self._board is not None and self._membranes is not None and (found := self._membranes.take()):
                self._board.add_histograms("membrane", found, trainer.global_step)
        session.losses = []

    def _scalars(self, prefix: str, row: dict[str, Any], step: int) -> None:
        if self._board is not None:
            self._board.add(prefix, row, step)
        if self._loggers is not None:
            self._loggers.add(prefix, row, step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close("failed")

    def _close(self, status: str = "success") -> None:
        if self._membranes is not None:
            self._membranes.close()
        if self._loggers is not None:
            self._loggers.close(status)
            self._loggers = None
        if self._board is not None:
            self._board.close()
            self._board = None

"""Writes the measurements of an epoch: CSV tables and TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steadyspike.train.build.task import Task
from steadyspike.train.files.loggers import Board, Loggers
from steadyspike.train.files.tables import Extent, Table
from steadyspike.train.run.health_policy import COLUMNS as HEALTH_COLUMNS
from steadyspike.train.state.session import Observer, Session
from steadyspike.train.watch.layers import MembraneWatch

TABLES = ("metrics", "layers", "steps", "health")
LAYER_COLUMNS = ("rate", "silent", "threshold", "tau", "running_mean", "gradient")


def table_names(task: Task) -> set[str]:
    """Returns the names of the tables that a run of this task writes."""
    return {*TABLES, *task.extra_tables}


def open_tables(root: Path, task: Task, part: str | None, extents: dict[str, Extent] | None) -> dict[str, Table]:
    """Opens the tables of `table_names`.

    extents: the lengths of the tables when a checkpoint was written; rows after them are removed
    """
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


class Recorder(Observer):
    """Writes a row of steps.csv every ``log_every`` optimizer steps, and the rows of an epoch at its end.

    Only the first process writes.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._board: Board | None = None
        self._loggers: Loggers | None = None
        self._membranes: MembraneWatch | None = None

    def start(self) -> None:
        session = self.session
        if session.tables:
            self._board = Board(session.folder.root / "tensorboard", session.steps + 1)
            self._loggers = Loggers(session.recipe, session.folder.root, session.messages.append)
            self._membranes = MembraneWatch(session.task.model)

    def after_step(self) -> None:
        session = self.session
        if session.steps % session.recipe.train.log_every == 0:
            loss = sum(session.losses) / len(session.losses)
            session.losses = []
            row = {"lr": session.rate_of(session.steps), "loss": loss, "gradient": session.step.gradient}
            if session.tables:
                session.tables["steps"].add(step=session.steps, epoch=session.epoch + 1, **row)
                self._scalars("step", row, session.steps)

    def before_evaluation(self) -> None:
        if self._membranes is not None:
            self._membranes.start()

    def after_epoch(self) -> None:
        session, part = self.session, self.session.bundle.selection_part
        assert session.train_scores is not None
        row: dict[str, Any] = {"lr": session.rate_of(session.steps), **session.train_scores.cells("train")}
        scores, tables, epoch = session.task.last_eval, session.tables, session.epoch + 1
        if scores is not None and part is not None:
            row |= scores.cells(part)
        if not tables:
            return
        for name, extra in session.task.extra_rows():
            tables[name].add(epoch=epoch, **extra)
        tables["metrics"].add(epoch=epoch, step=session.steps, **row)
        self._scalars("epoch", row, session.steps)
        for layer in session.rows:
            values = {column: getattr(layer, column) for column in LAYER_COLUMNS}
            rates = {f"rate_{t}": r for t, r in enumerate(layer.rates, 1)}
            tables["layers"].add(epoch=epoch, layer=layer.layer, **values, **rates)
            self._scalars(f"layers/{layer.layer}", {**values, **rates}, session.steps)
        if self._board is not None and self._membranes is not None and (histograms := self._membranes.take()):
            self._board.add_histograms("membrane", histograms, session.steps)

    def _scalars(self, prefix: str, row: dict[str, Any], step: int) -> None:
        if self._board is not None:
            self._board.add(prefix, row, step)
        if self._loggers is not None:
            self._loggers.add(prefix, row, step)

    def close(self, failed: bool) -> None:
        if self._membranes is not None:
            self._membranes.close()
        if self._loggers is not None:
            self._loggers.close("failed" if failed else "success")
            self._loggers = None
        if self._board is not None:
            self._board.close()
            self._board = None

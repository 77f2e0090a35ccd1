"""Writes the numbers of a run for TensorBoard, and for the loggers of other packages by name.

TensorBoard's files are written in this thread, so that a full disk is reported here.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from steadyspike.train.files.atomic import CheckpointError, why_not_written
from steadyspike.train.recipe import Recipe, RecipeError


class Histogram(NamedTuple):
    """Counts of values in equal bins from low to high.

    total: sum of the values
    squares: sum of their squares
    """

    low: float
    high: float
    counts: list[float]
    total: float
    squares: float


class Board:
    """One event file in ``folder``. TensorBoard then ignores older files from ``step`` on."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._histogram = Event, Summary, HistogramProto
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(open(self.path, "wb"))  # noqa: SIM115
        self._write(
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)),
        )

    def add(self, prefix: str, row: Mapping[str, float | None], step: int) -> None:
        """Writes the numbers of ``row`` as prefix/name; None is left out."""
        values = [
            self._summary.Value(tag=f"{prefix}/{name}", simple_value=value)
            for name, value in row.items()
            if value is not None
        ]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def add_histograms(self, prefix: str, rows: Mapping[str, Histogram], step: int) -> None:
        """Writes counts in equal bins as prefix/name, in the form that TensorBoard draws."""
        values = []
        for name, row in rows.items():
            width = (row.high - row.low) / len(row.counts)
            histo = self._histogram(
                min=row.low, max=row.high, num=sum(row.counts), sum=row.total, sum_squares=row.squares,
                bucket_limit=[row.low + width * (i + 1) for i in range(len(row.counts))], bucket=row.counts,
            )  # fmt: skip
            values.append(self._summary.Value(tag=f"{prefix}/{name}", histo=histo))
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def _write(self, *events: object) -> None:
        try:
            for event in events:
                self._records.write(event.SerializeToString())  # type: ignore[attr-defined]
            self._records.flush()
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {why_not_written(self.path, error)}") from error

    def close(self) -> None:
        """Closes the file; everything was already written when it was added."""
        with suppress(OSError):  # an error of writing was reported when it happened
            self._records.close()


PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(names: Sequence[str]) -> None:
    """Raises an error, before anything is trained, if the package of a logger is missing."""
    for name in names:
        if find_spec(PACKAGES[name]) is None:
            raise RecipeError(
                f"train.loggers: {name!r} needs a package that is not installed: pip install {PACKAGES[name]}"
            )
    if "mlflow" in names and not os.environ.get("MLFLOW_TRACKING_URI") and find_spec("sqlalchemy") is None:
        raise RecipeError(
            "train.loggers: this 'mlflow' has no database (mlflow-skinny): pip install mlflow, or name a server in "
            "MLFLOW_TRACKING_URI"
        )


class Logger(Protocol):
    """A destination for a run's settings and numbers."""

    def log_hyperparams(self, settings: dict[str, Any]) -> None: ...
    def log_metrics(self, row: dict[str, float], step: int) -> None: ...
    def finalize(self, status: str) -> None: ...


class Wandb:
    """A run of Weights & Biases. The same folder is the same run there, so that a resumed run continues it."""

    def __init__(self, root: Path) -> None:
        import wandb

        name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(project="steadyspike", name=_name(root), dir=root, id=name, resume="allow")
        self._run.define_metric("*", step_metric="step")  # wandb's own count of calls is not the run's step

    def log_hyperparams(self, settings: dict[str, Any]) -> None:
        self._run.config.update(settings, allow_val_change=True)

    def log_metrics(self, row: dict[str, float], step: int) -> None:
        self._run.log({**row, "step": step})

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class Mlflow:
    """A run of MLflow, in the database that MLFLOW_TRACKING_URI names or in the run folder."""

    def __init__(self, root: Path) -> None:
        from mlflow.tracking import MlflowClient

        # MLflow's default is a file store. From version 3.13 on it raises an error unless MLFLOW_ALLOW_FILE_STORE is
        # set (github.com/mlflow/mlflow/issues/23634 and pull 23637).
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name("steadyspike")
        number = experiment.experiment_id if experiment else self._client.create_experiment("steadyspike")
        self._run = self._client.create_run(number, run_name=_name(root)).info.run_id

    def log_hyperparams(self, settings: dict[str, Any]) -> None:
        for table, keys in settings.items():
            for key, value in keys.items() if isinstance(keys, dict) else [("", keys)]:
                self._client.log_param(self._run, f"{table}/{key}".rstrip("/"), str(value)[:250])

    def log_metrics(self, row: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in row.items()])

    def finalize(self, status: str) -> None:
        self._client.set_terminated(self._run, "FINISHED" if status == "success" else "FAILED")


def _name(root: Path) -> str:
    return "/".join(root.resolve().parts[-2:])


_MAKERS: dict[str, Callable[[Path], Logger]] = {"wandb": Wandb, "mlflow": Mlflow}


class Loggers:
    """The loggers of a run. A logger that fails (for example without network) is reported once and not used again."""

    def __init__(self, recipe: Recipe, root: Path, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._open: dict[str, Logger] = {}
        check_loggers(recipe.train.loggers)
        for name in recipe.train.loggers:
            self._try(name, lambda name=name: self._begin(name, recipe, root))  # type: ignore[misc]

    def _begin(self, name: str, recipe: Recipe, root: Path) -> None:
        logger = _MAKERS[name](root)
        logger.log_hyperparams(recipe.model_dump(exclude_none=True))
        self._open[name] = logger

    def add(self, prefix: str, row: Mapping[str, float | None], step: int) -> None:
        """Returns the numbers of ``row`` as prefix/name; None is left out."""
        values = {f"{prefix}/{name}": value for name, value in row.items() if value is not None}
        for name, logger in list(self._open.items()):
            self._try(name, lambda logger=logger: logger.log_metrics(values, step=step))  # type: ignore[misc]

    def close(self, status: str = "success") -> None:
        for name, logger in list(self._open.items()):
            self._try(name, lambda logger=logger: logger.finalize(status))  # type: ignore[misc]
        self._open = {}

    def _try(self, name: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:
            self._open.pop(name, None)
            text = str(error).splitlines()[0] if str(error) else ""
            self._tell(f"{name} gets no more numbers: {type(error).__name__}: {text}")

"""Third-party loggers by name: they log the same numbers as TensorBoard, if their package is installed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from steadyspike.train.recipe import Recipe, RecipeError

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
    """The destinations of a run's settings and numbers."""

    def log_hyperparams(self, settings: dict[str, Any]) -> None: ...
    def log_metrics(self, row: dict[str, float], step: int) -> None: ...
    def finalize(self, status: str) -> None: ...


class Wandb:
    """A run of Weights & Biases; the same folder is the same run there, so that a resumed run continues it."""

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

        # MLflow's default is a file store, which raises an error from 3.13 on unless MLFLOW_ALLOW_FILE_STORE is set
        # (github.com/mlflow/mlflow/issues/23634 and pull 23637).
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
        """The numbers of ``row`` as prefix/name; None is left out."""
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
            self._tell(f"nothing more goes to {name}: {type(error).__name__}: {text}")

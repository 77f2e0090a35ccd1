"""Other people's loggers by name, through Lightning: they log what TensorBoard gets, if their package is there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from steadyspike.train.recipe import Recipe, RecipeError

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(names: Sequence[str]) -> None:
    """Refuses, before anything is trained, a logger whose package is missing."""
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


def _wandb(recipe: Recipe, root: Path) -> Any:
    from lightning.pytorch.loggers import WandbLogger

    # The same folder is the same run there, so that a resumed run goes on in it.
    known = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return WandbLogger(name=_name(root), save_dir=root, project="steadyspike", id=known, resume="allow")


def _mlflow(recipe: Recipe, root: Path) -> Any:
    from lightning.pytorch.loggers import MLFlowLogger

    # Lightning's default is a file store, which MLflow refuses from 3.13 on unless MLFLOW_ALLOW_FILE_STORE is set
    # (github.com/mlflow/mlflow/issues/23634 and pull 23637).
    place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"
    return MLFlowLogger(experiment_name="steadyspike", run_name=_name(root), tracking_uri=place)


def _name(root: Path) -> str:
    return "/".join(root.resolve().parts[-2:])


_MAKERS: dict[str, Callable[[Recipe, Path], Any]] = {"wandb": _wandb, "mlflow": _mlflow}


class Loggers:
    """The loggers of a run. One that fails (a network that is gone) is told once and not used again."""

    def __init__(self, recipe: Recipe, root: Path, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._open: dict[str, Any] = {}
        check_loggers(recipe.train.loggers)
        for name in recipe.train.loggers:
            self._try(name, lambda name=name: self._begin(name, recipe, root))  # type: ignore[misc]

    def _begin(self, name: str, recipe: Recipe, root: Path) -> None:
        logger = _MAKERS[name](recipe, root)
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

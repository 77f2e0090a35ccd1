"""Training runs from recipes; the names below are loaded when they are first used."""

from importlib import import_module
from typing import Any

_PLACES = {
    "Recipe": "recipe",
    "RecipeError": "recipe",
    "RunError": "files.folder",
    "RunFolder": "files.folder",
    "RunData": "build.data",
    "Task": "build.task",
    "build_model": "build.build_network",
    "build_optimizer": "build.optimizer",
    "dry_run": "build.dry_run",
    "evaluate_run": "run.evaluation",
    "find_recipe": "recipe",
    "load_recipe": "recipe",
    "load_weights": "files.weights",
    "new_folder": "files.folder",
    "recipe_names": "recipe",
    "save_weights": "files.weights",
    "train": "run.training",
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"steadyspike.train.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'steadyspike.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

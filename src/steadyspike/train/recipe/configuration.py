"""What makes the configuration of a recipe: every key but those that only say where and how often it runs."""

from __future__ import annotations

from typing import Any

from steadyspike.train.recipe.load import INCIDENTAL, PRIVATE
from steadyspike.train.recipe.schema import Recipe


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """``{"table.key": value}`` of all tables that decide a run."""
    tables = recipe.model_dump(exclude=set(PRIVATE))
    return {f"{table}.{key}": value for table, keys in tables.items() if keys for key, value in keys.items()}


def configuration(recipe: Recipe) -> dict[str, Any]:
    """``{"table.key": value}`` of what makes the configuration; two runs that share it differ in their seed at most."""
    return {key: value for key, value in keys_of(recipe).items() if key not in INCIDENTAL}

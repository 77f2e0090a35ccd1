"""The origin of a recipe: its name, its base, and every key in which it differs from the base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyspike.train.recipe.errors import RecipeError
from steadyspike.train.recipe.identity import keys_of
from steadyspike.train.recipe.load import load_recipe
from steadyspike.train.recipe.recipe_catalogue import Source, find_recipe, recipes_of
from steadyspike.train.recipe.schema import Recipe

ORIGIN = "origin.json"  # the file of a run that holds this


def origin(recipe: str | Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """``{"name", "base", "settings", "changed"}`` as plain values.

    base: the recipe that this one builds on, or None for the defaults. changed: ``{"key", "base", "value", "by"}`` for
    every key with another value than in the base; by: ``"recipe"`` or ``"--set"``.
    """
    source = find_recipe(recipe)
    base = recipes_of(source.path.resolve())[source.name].get("base")
    before, own, final = (keys_of(r) for r in (_base(base, source), load_recipe(recipe), load_recipe(recipe, settings)))
    changed = [
        {"key": key, "base": before.get(key), "value": value, "by": "recipe" if own.get(key) == value else "--set"}
        for key, value in final.items()
        if before.get(key) != value or own.get(key) != value
    ]
    return {"name": source.name, "base": base, "settings": list(settings), "changed": changed}


def _base(base: str | None, source: Source) -> Recipe:
    """The base as a complete recipe; the defaults if there is none, or if it is not complete."""
    if base is None:
        return Recipe()
    beside = source.path.resolve().parent / base
    for candidate in (beside, base):
        try:
            return load_recipe(candidate)
        except (RecipeError, OSError):
            continue
    return Recipe()

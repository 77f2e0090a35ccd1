"""From a name or a path to a checked recipe: find, inherit, override, validate; and its origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steadyspike.train.recipe import toml
from steadyspike.train.recipe.identity import INCIDENTAL, PRIVATE, keys_of
from steadyspike.train.recipe.recipe_catalogue import Source, find_recipe, recipes_of
from steadyspike.train.recipe.schema import Recipe
from steadyspike.train.recipe.table import RecipeError, explain, named, shortened
from steadyspike.train.recipe.toml import merge

_NUMBERS = ("shown", "paper")  # no longer true for a recipe that was changed


def inherited(source: Source, seen: tuple[Source, ...] = ()) -> dict[str, Any]:
    """Returns a recipe with all its bases merged in; a base is a packaged name, or a path relative to the file."""
    source = source._replace(path=source.path.resolve())
    if source in seen:
        raise RecipeError("recipes inherit in a circle: " + " -> ".join(s.name for s in (*seen, source)))
    own, file = recipes_of(source.path)[source.name], source.path.name
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise RecipeError(f"{file}: base = {base!r} is not valid; it must be the name or path of one recipe")
    beside = source.path.parent / base
    try:
        is_beside = ".toml" in base and Path(str(beside).rpartition(".toml")[0] + ".toml").is_file()
        base_source = find_recipe(beside if is_beside else base)
    except OSError as error:  # such as a name that is too long for a file
        raise RecipeError(f"{file}: base = {shortened(base)}: {error.strerror}") from None
    except RecipeError as error:
        raise RecipeError(f"{file}: base = {shortened(base)}: {error}") from None
    above = inherited(base_source, (*seen, source))
    return merge({k: v for k, v in above.items() if k not in PRIVATE}, own)


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Returns ``["a.b=1", "c=x"]`` as nested tables; the right side is a TOML value, or otherwise a string."""
    result: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        names = key.strip().split(".")
        if not sign or not all(names):
            raise RecipeError(f"--set {setting!r} is not valid; it must be table.key=value, such as data.timesteps=4")
        tree: dict[str, Any] = toml.value(text.strip())
        for name in reversed(names):
            tree = {name: tree}
        result = merge(result, tree, {})  # overrides are applied together, in any order
    return result


def parse(document: dict[str, Any], name: str = "recipe") -> Recipe:
    """Returns plain values, checked."""
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{named(name)}: {explain(error, Recipe)}") from None


def _decides(changes: dict[str, Any]) -> bool:
    """Returns whether overrides change the configuration, and not only how it runs."""
    return any(
        f"{table}.{key}" not in INCIDENTAL
        for table, keys in changes.items()
        for key in (keys if isinstance(keys, dict) else [""])
    )


def load_recipe(recipe: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """Loads a packaged recipe by name, or a file by path, and applies ``--set`` overrides.

    An overridden recipe is no longer the paper's configuration, so it loses its published number.
    """
    source = find_recipe(recipe)
    document, changes = inherited(source), overrides(settings)
    if _decides(changes):
        document = {k: v for k, v in document.items() if k not in _NUMBERS}
    return parse(merge(document, changes), source.name)


ORIGIN = "origin.json"  # the file of a run that contains this


def origin(recipe: str | Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Returns ``{"name", "base", "settings", "changed"}`` as plain values.

    base: the recipe on which this one is based, or None for the defaults
    changed: ``{"key", "base", "value", "by"}`` for every key whose value differs from the base; by: ``"recipe"`` or
        ``"--set"``
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
    """Returns the base as a complete recipe; the defaults if there is none, or if it is not complete."""
    if base is None:
        return Recipe()
    beside = source.path.resolve().parent / base
    for candidate in (beside, base):
        try:
            return load_recipe(candidate)
        except (RecipeError, OSError):
            continue
    return Recipe()

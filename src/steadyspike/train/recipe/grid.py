"""One file for many recipes: ``[grid]`` lists what varies, and every combination is a recipe with its own name.

    about = "{gradient.text}, V frozen at {v}"
    [grid]
    name = "frozen-{gradient}-v{v}"
    v = [0.1, 0.5]                                              # an axis of plain values
    gradient = [{ name = "as", text = "AS-SG" }, { name = "rs", text = "RS-SG" }]   # an axis of tables
    [neuron]
    gradient = "{gradient}"                                     # alone in a string: the value with its type
    threshold = "{v}"

``{axis}`` is the value, or the table's ``name``; ``{axis.key}`` is another key of that table. The keys of a table's
``set`` override the recipe. Three keys of ``[grid]`` are not axes: ``name``; ``paper``, with the text that published
numbers share and ``values`` by recipe name (a number, or a table with its spread); and ``only``, with tables for single
recipes, by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

from steadyspike.train.recipe.table import RecipeError

_PLACE = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_NOT_AXES = ("name", "paper", "only")
Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def expand(document: dict[str, Any], file: str, merge: Merge) -> dict[str, dict[str, Any]]:
    """Returns the recipes of a file with ``[grid]``, by name and still without their base; ``file`` is for messages."""
    grid, body = document["grid"], {key: item for key, item in document.items() if key != "grid"}
    if not isinstance(grid, dict) or not isinstance(grid.get("name"), str):
        raise RecipeError(f"{file}: [grid] needs a name, such as name = 'run-{{axis}}'")
    axes = {axis: entries for axis, entries in grid.items() if axis not in _NOT_AXES}
    for axis, entries in axes.items():
        if not isinstance(entries, list) or not entries:
            raise RecipeError(f"{file}: grid.{axis} = {entries!r} is not valid; it must be a list of values or tables")
        if any(isinstance(entry, dict) and "name" not in entry for entry in entries):
            raise RecipeError(f"{file}: every table of grid.{axis} needs a name")
    recipes: dict[str, dict[str, Any]] = {}
    for entries in product(*axes.values()):
        chosen = dict(zip(axes, entries))
        recipe = _filled(body, chosen, file)
        for entry in entries:
            if isinstance(entry, dict):
                recipe = merge(recipe, _filled(entry.get("set", {}), chosen, file))
        name = str(_filled(grid["name"], chosen, file))
        if name in recipes:
            raise RecipeError(f"{file}: grid.name = {grid['name']!r} gives {name!r} twice; name every axis in it")
        recipes[name] = recipe
    return _with_numbers(recipes, grid, file, merge)


def _with_numbers(
    recipes: dict[str, dict[str, Any]], grid: dict[str, Any], file: str, merge: Merge
) -> dict[str, dict[str, Any]]:
    """Adds published numbers and single exceptions to the recipes that they name."""
    paper = dict(grid.get("paper", {}))
    extra = {
        name: {"paper": {**paper, **(value if isinstance(value, dict) else {"value": value})}}
        for name, value in paper.pop("values", {}).items()
    }
    for tables in (extra, grid.get("only", {})):
        for name, tables_of_one in tables.items():
            if name not in recipes:
                raise RecipeError(f"{file}: [grid] has no recipe {name!r}; it has {', '.join(recipes)}")
            recipes[name] = merge(recipes[name], tables_of_one)
    return recipes


def _filled(item: Any, chosen: dict[str, Any], file: str) -> Any:
    """Returns ``item`` with every ``{axis}`` and ``{axis.key}`` replaced."""
    if isinstance(item, dict):
        return {key: _filled(value, chosen, file) for key, value in item.items()}
    if isinstance(item, list):
        return [_filled(value, chosen, file) for value in item]
    if not isinstance(item, str):
        return item
    if (whole := _PLACE.fullmatch(item)) is not None:
        return _value(whole[1], chosen, file)
    return _PLACE.sub(lambda match: str(_value(match[1], chosen, file)), item)


def _value(axis_name: str, chosen: dict[str, Any], file: str) -> Any:
    axis, _, key = axis_name.partition(".")
    if axis in chosen:
        entry = chosen[axis]
        if not key:
            return entry["name"] if isinstance(entry, dict) else entry
        if isinstance(entry, dict) and key in entry:
            return entry[key]
    raise RecipeError(f"{file}: {{{axis_name}}} is not in [grid]; it has the axes {', '.join(chosen)}")

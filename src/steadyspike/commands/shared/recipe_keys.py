"""The meaning of every recipe key, read from the schema: for ``recipes --show`` and for docs/recipe-keys.md."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from steadyspike.train.recipe import toml
from steadyspike.train.recipe.schema import Recipe
from steadyspike.train.recipe.table import table_class

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "table"}
_LEFT = 32  # columns for the key and its value


class Key(NamedTuple):
    """One key: its table ("" at the top), name, meaning, valid values, and its default as TOML ("" for none)."""

    table: str
    name: str
    meaning: str
    takes: str
    default: str


def tables() -> dict[str, type[BaseModel]]:
    """Returns the tables of a recipe, in order; ``""`` has the keys above the first table."""
    by_name: dict[str, type[BaseModel]] = {"": Recipe}
    for name, field in Recipe.model_fields.items():
        if (inner := table_class(field.annotation)) is not None:
            by_name[name] = inner
    return by_name


def keys(table: str) -> Iterator[Key]:
    """Returns the keys of one table."""
    model = tables()[table]
    for name, field in model.model_fields.items():
        if table or table_class(field.annotation) is None:
            yield Key(table, name, field.description or "", takes(field.annotation), _default(field))


def takes(kind: Any) -> str:
    """Returns the TOML values that a type accepts, in words."""
    if kind is None or kind is type(None):
        return ""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f'"{value}"' for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(text for member in inside if (text := takes(member))))
    if origin is list:
        return f"list of {takes(inside[0])}" + ("" if get_origin(inside[0]) is Literal else "s")
    if origin is dict:
        return _WORDS[dict]
    if inside:  # Annotated
        return takes(inside[0])
    return _WORDS[kind]


def _default(field: FieldInfo) -> str:
    return "" if field.default in (PydanticUndefined, None) else toml.text(field.default)


def explained(recipe: Recipe, width: int = 80) -> str:
    """Returns a resolved recipe as TOML, with the meaning of every key as a comment.

    A key without a value (left to the neuron, the network or the data set) is written as a comment.
    """
    lines: list[str] = []
    for table, model in tables().items():
        value = getattr(recipe, table) if table else recipe
        if value is None:
            continue
        if table:
            lines += ["", *_beside(f"[{table}]", about_table(model), width)]
        for key in keys(table):
            item = getattr(value, key.name)
            left = f"# {key.name}: left out" if item is None else f"{key.name} = {toml.text(item)}"
            lines += _beside(left, key.meaning, width)
    return "\n".join(lines).strip() + "\n"


def about_table(model: type[BaseModel]) -> str:
    """Returns what a table is for: its docstring without the table's name."""
    text = " ".join((model.__doc__ or "").split()).partition("]: ")[2]
    return text[:1].upper() + text[1:]


def _beside(left: str, meaning: str, width: int) -> list[str]:
    """Returns ``left`` and, in the second column, ``meaning`` as a comment of as many lines as it needs."""
    lines = [f"{'':<{_LEFT}}# {line}" for line in textwrap.wrap(meaning, width - _LEFT - 2)]
    if len(left) >= _LEFT or not lines:
        return [left, *lines]
    return [left + lines[0][len(left) :], *lines[1:]]


def page() -> str:
    """Returns docs/recipe-keys.md."""
    lines = [
        "# Keys of a recipe",
        "",
        "Written by `steadyspike recipes --keys`; a test compares the two. A key that is left out has the default that",
        "is given here; if the default is empty, the neuron, network or data set uses its own value.",
    ]
    for table, model in tables().items():
        about = about_table(model)
        title = f"`[{table}]`" if table else "Above the first table"
        lines += ["", f"## {title}", "", *([about, ""] if about else [])]
        lines += ["| key | means | takes | default |", "|---|---|---|---|"]
        for key in keys(table):
            default = f"`{key.default}`" if key.default else ""
            lines.append(f"| `{key.name}` | {key.meaning} | {key.takes} | {default} |")
    return "\n".join(lines) + "\n"

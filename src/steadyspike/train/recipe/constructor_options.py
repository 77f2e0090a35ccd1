"""Checks options that a recipe passes to a constructor: names and types, from its signature, before it runs."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from steadyspike.train.recipe.table import RecipeError, shortened, unknown_key

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a table"}


def kinds_of(build: Any) -> dict[str, Any]:
    """Returns the types of the named arguments of a function or a class.

    An argument without annotation has the type of its default. Three kinds of arguments count as Any, which accepts
    everything: those with neither annotation nor default, those with a default of None, and those with a type that only
    type checkers can resolve.
    """
    scope = vars(sys.modules[build.__module__])
    kinds: dict[str, Any] = {}
    for p in inspect.signature(build).parameters.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            continue
        if p.annotation is p.empty:
            kinds[p.name] = Any if p.default is p.empty or p.default is None else type(p.default)
        else:
            one = type("OneAnnotation", (), {"__annotations__": {p.name: p.annotation}})
            try:
                kinds[p.name] = typing.get_type_hints(one, scope)[p.name]
            except NameError:
                kinds[p.name] = Any
    return kinds


def check_name(name: str, valid: Iterable[str], key: str) -> None:
    """Raises an error for a name that is not one of ``valid``; ``key``: its key in the recipe."""
    if name not in (names := list(valid)):
        raise RecipeError(f"{key} = {shortened(name)} is not valid; it must be one of {', '.join(names)}")


def check_options(
    options: Mapping[str, Any], kinds: Mapping[str, Any], key: str, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raises an error for options that do not exist or have another type.

    kinds: name -> type
    key: the table's path
    elsewhere: names that another key sets -> that key, "" for none
    """
    for name, value in options.items():
        if elsewhere is not None and name in elsewhere:
            raise RecipeError(f"{key}.{name} cannot be set in a recipe" + _say(elsewhere[name]))
        if name not in kinds:
            raise RecipeError(unknown_key(f"{key}.{name}", list(kinds)))
        if kinds[name] is Any:
            continue
        valid_kinds = list(dict.fromkeys(_words(kinds[name])))
        if not valid_kinds:
            raise RecipeError(f"{key}.{name} cannot be set in a recipe: it is a piece of code")
        if not _fits(value, kinds[name]):
            raise RecipeError(f"{key}.{name} = {shortened(value)} is not valid; it must be {' or '.join(valid_kinds)}")


def _say(other: str) -> str:
    return f": {other} sets it" if other else ""


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return origin in (tuple, list) or (isinstance(origin, type) and origin is not str and issubclass(origin, Sequence))


def _words(kind: Any) -> Iterator[str]:
    """Returns the TOML values of a type, in words; nothing for other types."""
    for member in _members(kind):
        if _is_list(member):
            yield "a list"
        elif (typing.get_origin(member) or member) is dict:
            yield _WORDS[dict]
        elif member in _WORDS:
            yield _WORDS[member]


def _fits(value: Any, kind: Any) -> bool:
    for member in _members(kind):
        if _is_list(member):
            inner = [a for a in typing.get_args(member) if a is not Ellipsis]
            if isinstance(value, (list, tuple)) and (not inner or all(_fits(v, inner[0]) for v in value)):
                return True
        elif (typing.get_origin(member) or member) is dict:
            if isinstance(value, dict):
                return True
        elif member is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return True
        elif member in (int, str, bool) and type(value) is member:
            return True
    return False


@contextmanager
def naming(table: str, values: Mapping[str, Any]) -> Iterator[None]:
    """A constructor's error about a wrong value, as one line that names the key, or the table if the key is not clear.

    values: key below the table (``"options.dropout"``) -> the recipe's value; None if it has none
    """
    try:
        yield
    except RecipeError:
        raise
    except (ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecipeError(f"{told(table, values, text) or table}: {text}") from None


def told(table: str, values: Mapping[str, Any], text: str) -> str | None:
    """``"table.key = value"`` of the one key whose last name is in ``text``; None if that is not exactly one key."""
    set_keys = [key for key, value in values.items() if value is not None]
    mentioned = [key for key in set_keys if re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", text)]
    return f"{table}.{mentioned[0]} = {values[mentioned[0]]!r}" if len(mentioned) == 1 else None


def below(table: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a": 1}`` as ``{"table.a": 1}``."""
    return {f"{table}.{key}": value for key, value in options.items()}

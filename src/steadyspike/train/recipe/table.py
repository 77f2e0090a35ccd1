"""The base of a recipe's tables: their types, the marks of their keys, and errors in one line."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from steadyspike.disk.plain_text import PlainError

Mark = dict[str, JsonValue]
# Marks of keys; a key without one decides a run's numbers. `train.recipe.identity` reads them.
TEXT: Mark = {"decides": "text"}  # describes one recipe, and is not inherited
PLACE: Mark = {"decides": "place"}  # where a run is and what it writes: may change when it is resumed
REPEAT: Mark = {"decides": "repeat"}  # which run of one configuration this is, and how it is measured
LATER: Mark = {"since": "later"}  # added after runs were made: at its default it does not change their fingerprint


class Table(BaseModel):
    """A TOML table: unknown keys and wrong types raise an error, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RecipeError(PlainError, ValueError):
    """A recipe that cannot be used; the message is one line."""


def shortened(value: Any) -> str:
    """Returns ``repr(value)`` for a message of one line; only its first characters if it is long."""
    try:
        text = repr(value)
    except ValueError:  # a number with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}..."


def named(text: str) -> str:
    """Returns a name for a message of one line: unchanged, or `shortened` if it is long or not printable."""
    return text if len(text) <= 80 and text.isprintable() else shortened(text)


def table_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """Returns the class of the table that contains the key at ``location``."""
    current: type[BaseModel] | None = model
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(str(part)) if current is not None else None
        current = table_class(field.annotation) if field is not None else None
    return current


def table_class(annotation: Any) -> type[BaseModel] | None:
    """Returns the class of the table that a key contains; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for arg in get_args(annotation) if (inner := table_class(arg)) is not None), None)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Returns the first of pydantic's errors as one sentence, and the number of other errors."""
    problems = error.errors(include_url=False)
    # A union gives one error per member; only the key matters.
    keys = list(dict.fromkeys(_key(e["loc"]) for e in problems))
    first = [e for e in problems if _key(e["loc"]) == keys[0]]
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return _sentence(first, model) + more


def _key(location: tuple[Any, ...]) -> str:
    parts = [p for p in location if isinstance(p, int) or p.isidentifier()]
    types = {"float", "int", "str", "bool", "constrained", "literal"}
    return ".".join(str(p) for p in parts if p not in types)


def _sentence(errors: list[Any], model: type[BaseModel]) -> str:
    e = errors[0]
    key = _key(e["loc"])
    if e["type"] == "extra_forbidden":
        table = table_at(model, e["loc"])
        return unknown_key(key, list(table.model_fields) if table is not None else [], all_keys(model))
    if e["type"] == "value_error":
        return str(e["ctx"]["error"])
    if e["type"] == "missing":
        return f"{key} is missing"
    wants = " or ".join(dict.fromkeys(_expected(x) for x in errors))
    return f"{key} = {shortened(e['input'])} is not valid; it must be {wants}"


def _expected(e: Any) -> str:
    if e["type"] == "literal_error":
        return f"one of {e['ctx']['expected']}"
    if e["type"] in ("model_type", "dict_type"):
        return "a table"
    if e["type"] in ("too_short", "too_long"):
        return f"a list of {e['ctx'].get('min_length', e['ctx'].get('max_length'))}"
    return str(e["msg"]).removeprefix("Input should be ")


def all_keys(model: type[BaseModel]) -> list[str]:
    """Returns ``"table.key"`` for every key of every table."""
    keys = []
    for table, field in model.model_fields.items():
        inner = table_class(field.annotation)
        keys += [table] if inner is None else [f"{table}.{key}" for key in inner.model_fields]
    return keys


def unknown_key(key: str, valid: list[str], elsewhere: Sequence[str] = ()) -> str:
    """The sentence about a key that does not exist; ``elsewhere``: keys of other tables, one of which may be meant."""
    name = key.rsplit(".", 1)[-1]
    near = get_close_matches(name, valid, n=1)
    if not near:  # the right name in the wrong table, or a similar name
        last = {k.rsplit(".", 1)[-1] for k in elsewhere}
        close = [name] if name in last else get_close_matches(name, sorted(last), n=1, cutoff=0.75)
        near = [k for k in elsewhere if close and k.rsplit(".", 1)[-1] == close[0]]
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"unknown key {key}{hint}; valid: {', '.join(valid)}"

"""Reads and writes TOML. The standard library reads it; the writer supports what a recipe contains."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from steadyspike.train.recipe.schema import Loss, Neuron, Optimizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError
# The library's time grows with the square of the number of parts of a dotted key (40 kB of "a.a.a..." take minutes),
# and no real recipe has a thousand kilobytes.
_MOST_DOTS, _MOST_TEXT = 500, 1 << 20


def loads(text: str) -> dict[str, Any]:
    """Returns a TOML document as plain values; raises a one-line TOMLDecodeError if the text is not TOML."""
    if len(text) > _MOST_TEXT:
        raise TOMLDecodeError(f"it has {len(text)} characters; at most {_MOST_TEXT} are read")
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise TOMLDecodeError(f"a line has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except TOMLDecodeError:
        raise
    except RecursionError:
        raise TOMLDecodeError("its brackets are nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise TOMLDecodeError(str(error).partition(";")[0]) from None


def value(text: str) -> Any:
    """Returns one TOML value (``0.5``, ``true``, ``[1, 2]``, ``"x"``); anything else is taken as a string."""
    try:
        return loads(f"value = {text}")["value"]
    except TOMLDecodeError:
        return text


def dumps(document: dict[str, Any]) -> str:
    """Returns plain values as TOML; None is left out, because TOML cannot represent it."""
    return "\n".join(_table(document, ())).strip() + "\n"


def text(item: Any) -> str:
    """Returns one value as TOML, with tables on one line."""
    return _value(item)


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, later = [], []
    for key, item in table.items():
        if item is None:
            continue
        if isinstance(item, dict):
            later += ["", f"[{_path(*path, key)}]", *_table(item, (*path, key))]
        elif isinstance(item, list) and item and all(isinstance(row, dict) for row in item):
            for row in item:
                later += ["", f"[[{_path(*path, key)}]]", *_table(row, (*path, key))]
        else:
            lines.append(f"{_path(key)} = {_value(item)}")
    return lines + later


def _path(*keys: str) -> str:
    return ".".join(k if k.replace("-", "_").isidentifier() else json.dumps(k) for k in keys)


def _value(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return json.dumps(item, ensure_ascii=False)
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else {"inf": "inf", "-inf": "-inf", "nan": "nan"}[repr(item)]
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(_value(i) for i in item) + "]"
    if isinstance(item, dict):
        inside = ", ".join(f"{_path(k)} = {_value(v)}" for k, v in item.items() if v is not None)
        return f"{{ {inside} }}" if inside else "{}"
    raise TypeError(f"TOML cannot hold {type(item).__name__} {item!r}")


# Another neuron, loss or optimizer drops the base's keys of that table, because they belong to the base's choice.
CHOICES: dict[str, Any] = {"neuron": Neuron, "loss": Loss, "optimizer": Optimizer}


def merge(base: dict[str, Any], over: dict[str, Any], choices: dict[str, Any] = CHOICES) -> dict[str, Any]:
    """Returns ``base`` overridden by ``over``, table by table.

    A new name in a table of ``choices`` drops the base's keys.

    An empty ``options = {}`` removes the base's options, because another network may not support them; an empty
    ``terms = {}`` removes its loss terms.
    """
    merged = dict(base)
    for key, item in over.items():
        old = merged.get(key)
        if isinstance(item, dict) and isinstance(old, dict) and not (key in ("options", "terms") and not item):
            choice = choices.get(key)
            default = choice.model_fields["name"].default if choice is not None else None
            afresh = choice is not None and "name" in item and item["name"] != old.get("name", default)
            merged[key] = dict(item) if afresh else merge(old, item, {})
        else:
            merged[key] = item
    return merged

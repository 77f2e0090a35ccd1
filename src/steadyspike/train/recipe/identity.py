"""The identity of a recipe: which keys decide a run's numbers. Resume, reproduce, record and compare use it.

The marks are in the schema (`TEXT`, `PLACE`, `REPEAT`, `LATER`); a key without a mark decides the numbers.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic.fields import FieldInfo

from steadyspike.train.recipe.schema import Recipe
from steadyspike.train.recipe.table import LATER, PLACE, REPEAT, TEXT, Mark, table_class


def _has(field: FieldInfo, mark: Mark) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and mark.items() <= extra.items()


def _marked(mark: Mark) -> frozenset[str]:
    """Returns ``"table.key"`` of every key with this mark."""
    tables = {name: table_class(field.annotation) for name, field in Recipe.model_fields.items()}
    return frozenset(
        f"{name}.{key}"
        for name, table in tables.items()
        if table is not None
        for key, field in table.model_fields.items()
        if _has(field, mark)
    )


# PRIVATE: keys that only describe a recipe. ANYWHERE: keys of a run's location.
# INCIDENTAL: also the keys in which repeated runs of one configuration differ.
PRIVATE = tuple(name for name, field in Recipe.model_fields.items() if _has(field, TEXT))
ANYWHERE = _marked(PLACE)
INCIDENTAL = ANYWHERE | _marked(REPEAT)
_LATER = _marked(LATER)
_AROUND: Any = dict.fromkeys(PRIVATE, True) | {
    table: {name.partition(".")[2] for name in ANYWHERE if name.startswith(f"{table}.")}
    for table in {name.partition(".")[0] for name in ANYWHERE}
}


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """Returns ``{"table.key": value}`` of all tables except those that only describe the recipe."""
    tables = recipe.model_dump(exclude=set(PRIVATE))
    return {f"{table}.{key}": value for table, keys in tables.items() if keys for key, value in keys.items()}


def configuration(recipe: Recipe) -> dict[str, Any]:
    """Returns ``{"table.key": value}`` of the configuration.

    Two runs with the same configuration differ at most in their seed.
    """
    return {key: value for key, value in keys_of(recipe).items() if key not in INCIDENTAL}


def deciding(recipe: Recipe, exclude_none: bool = False) -> dict[str, Any]:
    """Returns the tables with everything that decides a run's numbers, including the seed."""
    return recipe.model_dump(exclude=_AROUND, exclude_none=exclude_none)


def fingerprint(recipe: Recipe) -> str:
    """Returns a hash of `deciding`, which checkpoints contain.

    Keys that were added after a run only count if they are set.
    """
    tables, defaults = deciding(recipe), keys_of(Recipe())
    for name in _LATER:
        table, _, key = name.partition(".")
        if tables[table] and tables[table][key] == defaults[name]:
            del tables[table][key]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def difference(a: Recipe, b: Recipe) -> str | None:
    """Returns the first key in which two recipes would compute different numbers: ``"data.timesteps is 4, was 6"``."""
    left, right = deciding(a), deciding(b)
    for table, keys in left.items():
        if keys is None or right[table] is None:
            if keys != right[table]:
                return f"[{table}] is {'missing' if keys is None else 'there'}, which it was not before"
            continue
        for key, value in keys.items():
            if right[table][key] != value:
                return f"{table}.{key} is {value!r}, was {right[table][key]!r}"
    return None

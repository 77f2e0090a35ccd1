"""Tells whether two recipes would compute the same numbers."""

from __future__ import annotations

import hashlib
import json

from steadyspike.train.recipe import PRIVATE, Recipe

# What may differ between the parts of one run: where it runs, not what it computes.
_ANYWHERE = {"train": {"devices", "accelerator", "save_every", "log_every", "report", "loggers"}, "data": {"workers"}}


def fingerprint(recipe: Recipe) -> str:
    """Hash of everything in a recipe that decides a run's numbers."""
    kept = recipe.model_dump(exclude=set(PRIVATE))
    for table, keys in _ANYWHERE.items():
        for key in keys:
            kept[table].pop(key, None)
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def difference(a: Recipe, b: Recipe) -> str | None:
    """The first key in which two recipes would compute different numbers: ``"data.timesteps is 4, was 6"``."""
    left, right = a.model_dump(), b.model_dump()
    for table, fields in left.items():
        if table in PRIVATE:
            continue
        if fields is None or right[table] is None:
            if fields != right[table]:
                return f"[{table}] is {'missing' if fields is None else 'there'}, and was not so before"
            continue
        for key, value in fields.items():
            if key not in _ANYWHERE.get(table, ()) and right[table][key] != value:
                return f"{table}.{key} is {value!r}, was {right[table][key]!r}"
    return None

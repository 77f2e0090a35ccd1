"""One recipe laid on another."""

from __future__ import annotations

from typing import Any

from steadyspike.train.recipe.schema import Loss, Neuron, Optimizer

# Naming another neuron, loss or optimizer starts that table afresh: the base's constants belong to the base's choice.
CHOICES: dict[str, Any] = {"neuron": Neuron, "loss": Loss, "optimizer": Optimizer}


def merge(base: dict[str, Any], over: dict[str, Any], choices: dict[str, Any] = CHOICES) -> dict[str, Any]:
    """``over`` laid on ``base``, table by table; ``choices`` are the tables that start afresh with a new name.

    An empty ``options = {}`` removes the base's: another network may not know them.
    """
    merged = dict(base)
    for key, item in over.items():
        old = merged.get(key)
        if isinstance(item, dict) and isinstance(old, dict) and not (key == "options" and not item):
            choice = choices.get(key)
            default = choice.model_fields["name"].default if choice is not None else None
            afresh = choice is not None and "name" in item and item["name"] != old.get("name", default)
            merged[key] = dict(item) if afresh else merge(old, item, {})
        else:
            merged[key] = item
    return merged

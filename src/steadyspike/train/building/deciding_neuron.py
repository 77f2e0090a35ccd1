"""What a recipe's [neuron] table decides: a key that says what the named neuron does anyway decides nothing."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from steadyspike.nn.factory import Site
from steadyspike.train.building.build_network import neuron_spec
from steadyspike.train.recipe import RecipeError, schema

_KEPT = ("name", "channelwise", "backend", "options")  # whose effect the settings of one layer do not show
_SITE = Site(channels=2, size=(2, 2), timesteps=2)


def deciding_keys(table: schema.Neuron) -> dict[str, Any]:
    """The keys without which the neuron would be another; ``learn = ["threshold", "tau"]`` of a "lif" is not one.

    Two tables that say the same in different words have the same deciding keys.
    """
    found: dict[str, Any] = json.loads(_reduced(table.model_dump_json()))
    return found


@lru_cache(maxsize=1024)
def _reduced(table: str) -> str:
    """From JSON to JSON, since a table cannot be hashed; many recipes share one, and building layers takes a while."""
    kept = schema.Neuron.model_validate_json(table)
    wanted = _layer(kept)
    # In the order of the table: what belongs to a key, such as its width to a surrogate, follows it.
    for key in schema.Neuron.model_fields if wanted is not None else ():
        without = kept.model_copy(update={key: None})
        if key not in _KEPT and _layer(without) == wanted:
            kept = without
    return kept.model_dump_json(exclude_defaults=True)


def _layer(table: schema.Neuron) -> tuple[str, dict[str, Any]] | None:
    """The settings and the exact constants of a layer of this neuron; None if there can be no such layer."""
    try:
        layer = neuron_spec(table).at(_SITE)
    except RecipeError:
        return None
    return repr(layer), {name: value.tolist() for name, value in layer.state_dict().items()}

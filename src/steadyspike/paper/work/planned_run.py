"""A training run that a table or figure needs, and the key under which its result is stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from steadyspike.nn.factory import Site
from steadyspike.train.build.build_network import neuron_spec
from steadyspike.train.recipe import PRIVATE, Recipe, RecipeError, dumps, load_recipe, schema
from steadyspike.train.recipe.identity import INCIDENTAL


@dataclass(frozen=True)
class Run:
    """A recipe with changes and a seed."""

    recipe: str
    settings: tuple[str, ...] = ()
    seed: int = 0

    def load(self) -> Recipe:
        """Returns the recipe that is trained."""
        return _resolved(self.recipe, self.settings, self.seed)

    @property
    def label(self) -> str:
        """Returns a label of recipe and seed.

        If the settings (``--scale mini``) replace the recipe, the label begins with what runs.
        """
        now, written = self.load(), load_recipe(self.recipe)
        if (now.model.name, now.data.name) == (written.model.name, written.data.name):
            return f"{self.recipe}, seed {self.seed}"
        return f"{now.model.name} on {now.data.name}, T = {now.data.timesteps} (for {self.recipe}), seed {self.seed}"

    def key(self) -> str:
        """Returns a checksum of everything that decides the run's result: the resolved recipe and the seed.

        Only values that differ from a default are included. So a recipe key that a later version adds does not change
        the keys of old results, and recipes with the same meaning have the same key.
        """
        return _key(self.recipe, self.settings, self.seed)

    def work(self) -> float:
        """Returns the expected duration in a unit for one table only: samples shown, times epochs and steps."""
        recipe = self.load()
        return float(recipe.schedule.epochs * recipe.data.timesteps * (recipe.data.train_samples or 1500))


def key_of(recipe: Recipe) -> str:
    """Returns the key of a resolved recipe, as `Run.key` computes it."""
    tables = recipe.model_dump(exclude=set(PRIVATE), exclude_defaults=True)
    tables["neuron"] = deciding_keys(recipe.neuron)
    for name in INCIDENTAL - {"train.seed"}:
        table, _, key = name.partition(".")
        tables.get(table, {}).pop(key, None)
    tables = {name: table for name, table in tables.items() if table != {}}
    return hashlib.sha256(dumps(tables).encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def _resolved(recipe: str, settings: tuple[str, ...], seed: int) -> Recipe:
    return load_recipe(recipe, [*settings, f"train.seed={seed}"])


@lru_cache(maxsize=1024)
def _key(recipe: str, settings: tuple[str, ...], seed: int) -> str:
    return key_of(_resolved(recipe, settings, seed))


def seeded(recipe: str, seeds: int, settings: tuple[str, ...] = ()) -> list[Run]:
    """Returns one run per seed 0, 1, ..."""
    return [Run(recipe, settings, seed) for seed in range(seeds)]


_KEPT = ("name", "channelwise", "backend", "options")  # the settings of one layer do not show their effect
_SITE = Site(channels=2, size=(2, 2), timesteps=2)


def deciding_keys(table: schema.Neuron) -> dict[str, Any]:
    """The keys that change the neuron; ``learn = ["threshold", "tau"]`` of a "lif" is its default and is left out.

    Two tables with the same meaning have the same keys here.
    """
    keys: dict[str, Any] = json.loads(_reduced(table.model_dump_json()))
    return keys


@lru_cache(maxsize=1024)
def _reduced(table: str) -> str:
    """From JSON to JSON, because a table cannot be hashed.

    Many recipes share one table, and building layers takes a while.
    """
    kept = schema.Neuron.model_validate_json(table)
    reduced = _layer(kept)
    # In the order of the table: a key that belongs to another, such as the width of a surrogate, follows it.
    for key in schema.Neuron.model_fields if reduced is not None else ():
        without = kept.model_copy(update={key: None})
        if key not in _KEPT and _layer(without) == reduced:
            kept = without
    return kept.model_dump_json(exclude_defaults=True)


def _layer(table: schema.Neuron) -> tuple[str, dict[str, Any]] | None:
    """Returns the settings and the exact constants of a layer of this neuron; None if such a layer cannot be built."""
    try:
        layer = neuron_spec(table).at(_SITE)
    except RecipeError:
        return None
    return repr(layer), {name: value.tolist() for name, value in layer.state_dict().items()}

"""A training run that a table or figure needs, and the key under which its result is kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from steadyspike.train.building.deciding_neuron import deciding_keys
from steadyspike.train.recipe import PRIVATE, Recipe, dumps, load_recipe
from steadyspike.train.recipe.identity import INCIDENTAL


@dataclass(frozen=True)
class Run:
    """A recipe with changes and a seed."""

    recipe: str
    settings: tuple[str, ...] = ()
    seed: int = 0

    def load(self) -> Recipe:
        """The recipe that is trained."""
        return _resolved(self.recipe, self.settings, self.seed)

    @property
    def label(self) -> str:
        """The recipe and the seed; first what really runs, where the settings (``--scale mini``) replace it."""
        now, written = self.load(), load_recipe(self.recipe)
        if (now.model.name, now.data.name) == (written.model.name, written.data.name):
            return f"{self.recipe}, seed {self.seed}"
        return f"{now.model.name} on {now.data.name}, T = {now.data.timesteps} (for {self.recipe}), seed {self.seed}"

    def key(self) -> str:
        """A checksum of everything that decides the run's result: the resolved recipe and the seed.

        Only what differs from a default counts, so that a key that a later version adds changes no old result's key,
        and recipes that say the same in different words have one key.
        """
        return _key(self.recipe, self.settings, self.seed)

    def work(self) -> float:
        """How long it takes, in units that only compare runs of one table: samples shown, over epochs and steps."""
        recipe = self.load()
        return float(recipe.schedule.epochs * recipe.data.timesteps * (recipe.data.train_samples or 1500))


def key_of(recipe: Recipe) -> str:
    """The key of a resolved recipe, as `Run.key` gives it."""
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
    """One run per seed 0, 1, ..."""
    return [Run(recipe, settings, seed) for seed in range(seeds)]

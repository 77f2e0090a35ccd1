"""Measured results of this library as data: JSON files in ``steadyspike/results/``, from which pages are generated.

A file is a list of entries, one per line; its name is that of the recipe's folder (``results/deep.json``). The numbers
of a user's own ``FILE.toml`` are in ``FILE.measured.json`` in the same folder. An entry describes one run:

    {"recipe": "deep-tab", "seed": 0, "value": 37.2, "unit": "% accuracy", "commit": "cfd16f3...",
     "hardware": "AMD EPYC, 1 of 2 cores", "software": "torch 2.13.0+cpu", "date": "2026-11-17",
     "numbers": {"after step 1": 33.1, "firing rate": 0.15}}

or the mean over several seeds, if the single runs are not available any more: ``"seed": [0, 1, 2]``, ``"deviation"``,
and numbers as ``{"mean": 31.2, "deviation": 6.21}``. ``recipe`` may also name something that no recipe describes
(``stabilize:original``). The newest entries are last, and ``note`` describes how an unfinished run ended.

``steadyspike train NAME --record``, ``evaluate RUN --record`` and ``reproduce ... --record`` add entries. No other code
writes these files, and no code reads numbers from a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from steadyspike.train.recipe.recipe_catalogue import Source, recipe_root
from steadyspike.train.recipe.table import RecipeError, Table, explain

ENDING = ".measured.json"


class Spread(Table):
    """A mean over seeds, and the sample standard deviation if it was recorded."""

    mean: float
    deviation: float | None = None


class Measured(Table):
    """One entry: a run, or the mean of runs with several seeds."""

    recipe: str = Field(description="The recipe's name.")
    seed: int | list[int] = Field(description="train.seed of the run; a list for a mean over seeds.")
    value: float = Field(description="The main number of the run; the mean, if there are several seeds.")
    deviation: float | None = Field(default=None, description="The standard deviation over several seeds.")
    unit: str = Field(default="% accuracy", description="The unit of the number.")
    commit: str = Field(description="The commit of the library; '+changes' is added if files differed from it.")
    hardware: str = Field(description="The processor or the GPUs, and how many.")
    software: str = Field(default="", description="The version of torch.")
    date: str = Field(description="The day on which the run ended.")
    note: str = Field(default="", description="How the run ended, if it did not reach its last epoch.")
    numbers: dict[str, float | list[float] | Spread] = Field(
        default={}, description="Other numbers of the same run, by name; a list has one per time step or layer."
    )

    @property
    def text(self) -> str:
        """Returns the entry in one line."""
        seeds = (
            f"mean of seeds {', '.join(map(str, self.seed))}" if isinstance(self.seed, list) else f"seed {self.seed}"
        )
        spread = f" ± {self.deviation:g}" if self.deviation is not None else ""
        commits = ", ".join(commit[:7] for commit in self.commit.split(", "))
        parts = [f"{self.value:g}{spread} {self.unit}", self.note, seeds, f"commit {commits}", self.hardware, self.date]
        return ", ".join(part for part in parts if part)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Returns what distinguishes one run from another."""
        return self.recipe, str(self.seed), self.value, self.commit, self.hardware, self.date


def results_root() -> Path:
    """Returns the folder of the packaged results."""
    return Path(str(files("steadyspike"))) / "results"


def results_file(source: Source) -> Path:
    """The file with the numbers of a recipe: that of its folder if it is packaged, otherwise one next to the recipe."""
    if source.path.resolve().is_relative_to(recipe_root().resolve()):
        return results_root() / f"{source.group}.json"
    return source.path.with_name(source.path.stem + ENDING)


def read_results(path: Path) -> list[Measured]:
    """Returns the entries of a file, oldest first. A missing file counts as an empty one."""
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise RecipeError(f"{path} is not a list of results")
        return [Measured.model_validate(entry) for entry in entries]
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, Measured)}") from None
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}") from None


def written(entries: Iterable[Measured]) -> str:
    """Returns the text of a file: one entry per line, so that two people can add entries without a conflict."""
    lines = [json.dumps(entry.model_dump(exclude_defaults=True), ensure_ascii=False) for entry in entries]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def packaged_results() -> list[Measured]:
    """Returns everything that was recorded for packaged recipes and for the benchmark programs."""
    return [entry for path in sorted(results_root().glob("*.json")) for entry in read_results(path)]


def recorded(source: Source) -> list[Measured]:
    """Returns what was recorded for one recipe, oldest first."""
    return [entry for entry in read_results(results_file(source)) if entry.recipe == source.name]

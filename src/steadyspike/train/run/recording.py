"""Writes the number of a run into the recipe that it ran, as ``[[measured]]``."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import Recipe, RecipeError, find_recipe, load_recipe, recipe_names, toml
from steadyspike.train.recipe.configuration import configuration
from steadyspike.train.recipe.numbers_of_recipe import Measured
from steadyspike.train.recipe.recipe_catalogue import Source


def record(folder: RunFolder, name: str | None = None) -> tuple[str, Measured]:
    """Adds a run's test accuracy to its recipe's file; returns the recipe's name and what was written.

    name: a packaged recipe or a file; left out, the packaged recipe with the run's configuration is looked for.
    """
    source = find_recipe(name) if name is not None else _recipe_of(folder)
    recipe = load_recipe(source.name if name is None else name)
    if (changed := _difference(recipe, folder.read_recipe())) is not None:
        raise RunError(f"{folder.root} is not a run of {source.name}: {changed}")
    measured = measurement(folder)
    if measured in recipe.measured:
        raise RunError(f"this number of {folder.root} stands in {source.path.name} already")
    if "site-packages" in source.path.resolve().parts:
        raise RunError(f"{source.name} belongs to an installed package: record in a checkout (pip install -e .)")
    text = source.path.read_text(encoding="utf-8").rstrip("\n") + "\n\n" + _entry(source, measured)
    toml.loads(text)  # what is written can be read
    write_atomically(source.path, lambda file: file.write(text.encode()))
    return source.name, measured


def measurement(folder: RunFolder) -> Measured:
    """The number of a run that has ended, with where it came from."""
    result, about = folder.read_json("result.json"), folder.read_json("run.json")
    if result["status"] == "interrupted":
        raise RunError(f"{folder.root} was interrupted: there is no result to record")
    where = about["environment"]
    hardware = ", ".join(where["gpus"]) or f"{where['cpu']}, {where['threads']} of {where['cores']} cores"
    value, unit = headline(result["test"])
    ended = date.fromtimestamp((folder.root / "result.json").stat().st_mtime)
    return Measured(
        value=value,
        unit=unit,
        seed=result["seed"],
        commit=where["commit"] or "unknown",
        hardware=hardware,
        date=ended.isoformat(),
        note="" if result["status"] == "finished" else result["status"],
    )


def headline(test: dict[str, Any]) -> tuple[float, str]:
    """The number that stands for a result, and its unit."""
    if "accuracy" in test:
        return round(test["accuracy"][-1], 2), "% accuracy"
    return round(test["AP50"], 4), "COCO mAP@.5"


def _entry(source: Source, measured: Measured) -> str:
    table = f'[[grid.only."{source.name}".measured]]' if source.in_grid else "[[measured]]"
    return f"{table}\n{toml.dumps(measured.model_dump(exclude_defaults=True))}"


def _difference(recipe: Recipe, ran: Recipe) -> str | None:
    wanted, found = configuration(recipe), configuration(ran)
    said = ((k, found.get(k), wanted.get(k)) for k in {**wanted, **found})
    return next((f"{k} is {there!r}, the recipe says {here!r}" for k, there, here in said if there != here), None)


def _recipe_of(folder: RunFolder) -> Source:
    ran = folder.read_recipe()
    names = [name for name in recipe_names() if _difference(load_recipe(name), ran) is None]
    beside = Path(folder.root).resolve().parent.name  # runs/NAME/001
    if beside in names:
        names = [beside]
    if len(names) != 1:
        found = f"the recipes {', '.join(names)} have" if names else "no packaged recipe has"
        raise RecipeError(f"{found} the configuration of {folder.root}: name the recipe with --recipe")
    return find_recipe(names[0])

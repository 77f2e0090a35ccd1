"""Records the numbers of a run in the results of the recipe that it ran (see `results.measured`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from steadyspike.results.measured import Measured, read_results, results_file, written
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import Recipe, RecipeError, find_recipe, load_recipe, recipe_names
from steadyspike.train.recipe.identity import configuration
from steadyspike.train.recipe.kinds import kind_of_result
from steadyspike.train.recipe.recipe_catalogue import Source

More = Mapping[str, float | list[float]]


def record(folder: RunFolder, name: str | None = None, more: More | None = None) -> Measured:
    """Adds a run's numbers to the results of its recipe; returns what was written.

    name: a packaged recipe or a file; by default the packaged recipe with the run's configuration is used
    more: further numbers that were measured on the trained network

    They are also added to an existing entry of the run.
    """
    source = find_recipe(name) if name is not None else recipe_of_run(folder, "name the recipe with --recipe")
    recipe = load_recipe(source.name if name is None else name)
    if (changed := _difference(recipe, folder.read_recipe())) is not None:
        raise RunError(f"{folder.root} is not a run of {source.name}: {changed}")
    measured = measurement(folder, source.name, more or {})
    add(results_file(source), measured)
    return measured


def add(path: Path, measured: Measured) -> None:
    """Adds an entry to a file of results; raises RunError if it is there already, with the same numbers."""
    if "site-packages" in path.resolve().parts:
        raise RunError(f"{path.name} belongs to an installed package: record in a checkout (pip install -e .)")
    entries = read_results(path)
    same = [entry for entry in entries if entry.identity == measured.identity]
    if any(entry.numbers.keys() >= measured.numbers.keys() for entry in same):
        raise RunError(f"{measured.value} of {measured.recipe}, seed {measured.seed}, is in {path.name} already")
    kept = [entry for entry in entries if entry not in same]
    write_atomically(path, lambda file: file.write(written([*kept, measured]).encode()))


def measurement(folder: RunFolder, recipe: str, more: More) -> Measured:
    """Returns the numbers of a run that has ended, with commit, hardware and software."""
    result, about = folder.read_json("result.json"), folder.read_json("run.json")
    if result["status"] == "interrupted":
        raise RunError(f"{folder.root} was interrupted: there is no result to record")
    where = about["environment"]
    hardware = ", ".join(where["gpus"]) or f"{where['cpu']}, {where['threads']} of {where['cores']} cores"
    kind = kind_of_result(result["test"])
    unit, digits = kind.record
    ended = date.fromtimestamp((folder.root / "result.json").stat().st_mtime)
    return Measured(
        recipe=recipe,
        seed=result["seed"],
        value=round(kind.test_scores(result["test"])[-1], digits),
        unit=unit,
        commit=where["commit"] or "unknown",
        hardware=hardware,
        software=f"torch {where['packages']['torch']}",
        date=ended.isoformat(),
        note="" if result["status"] == "finished" else result["status"],
        numbers={**kind.others(result["test"]), **more},
    )


def _difference(recipe: Recipe, ran: Recipe) -> str | None:
    expected, actual = configuration(recipe), configuration(ran)
    values = ((k, actual.get(k), expected.get(k)) for k in {**expected, **actual})
    return next((f"{k} is {there!r}, in the recipe it is {here!r}" for k, there, here in values if there != here), None)


def recipe_of_run(folder: RunFolder, advice: str) -> Source:
    """Returns the packaged recipe with the configuration of a run.

    Raises RecipeError with the advice if there is none, or more than one.
    """
    ran = folder.read_recipe()
    names = [name for name in recipe_names() if _difference(load_recipe(name), ran) is None]
    beside = Path(folder.root).resolve().parent.name  # runs/NAME/001
    if beside in names:
        names = [beside]
    if len(names) != 1:
        matching = f"the recipes {', '.join(names)} have" if names else "no packaged recipe has"
        raise RecipeError(f"{matching} the configuration of {folder.root}: {advice}")
    return find_recipe(names[0])

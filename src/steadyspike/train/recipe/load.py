"""From a name or a path to a checked recipe: find, inherit, override, validate."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steadyspike.train.recipe import toml
from steadyspike.train.recipe.errors import RecipeError, explain
from steadyspike.train.recipe.schema import Loss, Neuron, Optimizer, Recipe

INCIDENTAL = {
    "train.seed", "train.devices", "train.accelerator", "train.save_every", "train.eval_every", "data.workers",
    "data.eval_batch_size", "train.log_every",
}  # fmt: skip
PRIVATE = ("about", "paper", "measured")  # what a recipe says about itself alone
# Naming another neuron, loss or optimizer starts that table afresh: the base's constants belong to the base's choice.
CHOICES: dict[str, Any] = {"neuron": Neuron, "loss": Loss, "optimizer": Optimizer}


def recipe_root() -> Path:
    """The folder of the packaged recipes."""
    return Path(str(files("steadyspike"))) / "recipes"


def recipe_names(bases: bool = False) -> list[str]:
    """Names of the packaged recipes; those in the folder ``base/`` only on request."""
    found = recipe_root().rglob("*.toml")
    return sorted(path.stem for path in found if bases or path.parent.name != "base")


def recipe_path(recipe: str | Path) -> Path:
    """The file of a packaged recipe, or the path itself."""
    path = Path(recipe)
    if path.suffix == ".toml":
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {path}")
        return path
    found = next(recipe_root().rglob(f"{path.name}.toml"), None) if path.name == str(recipe) else None
    if found is None:
        near = get_close_matches(str(recipe), recipe_names(bases=True), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(f"there is no recipe {recipe}{hint} (`steadyspike recipes` lists them; a file ends in .toml)")
    return found


def read(path: Path) -> dict[str, Any]:
    """A recipe file as plain values, not yet inherited."""
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name} is not TOML: {error}") from None


def merge(base: dict[str, Any], over: dict[str, Any], choices: dict[str, Any] = CHOICES) -> dict[str, Any]:
    """``over`` laid on ``base``, table by table; ``choices`` are the tables that start afresh with a new name."""
    merged = dict(base)
    for key, item in over.items():
        old = merged.get(key)
        if isinstance(item, dict) and isinstance(old, dict):
            choice = choices.get(key)
            default = choice.model_fields["name"].default if choice is not None else None
            afresh = choice is not None and "name" in item and item["name"] != old.get("name", default)
            merged[key] = dict(item) if afresh else merge(old, item, {})
        else:
            merged[key] = item
    return merged


def inherited(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe with all its bases merged in; a base is a packaged name, or a path relative to the file."""
    path = path.resolve()
    if path in seen:
        raise RecipeError("recipes inherit in a circle: " + " -> ".join(p.stem for p in (*seen, path)))
    own = read(path)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise RecipeError(f"{path.name}: base = {base!r} is not valid; it must be the name or path of one recipe")
    beside = path.parent / base
    try:
        found = beside if base.endswith(".toml") and beside.is_file() else recipe_path(base)
    except RecipeError as error:
        raise RecipeError(f"{path.name}: base = {base!r}: {error}") from None
    above = inherited(found, (*seen, path))
    return merge({k: v for k, v in above.items() if k not in PRIVATE}, own)


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """``["a.b=1", "c=x"]`` as nested tables; the right side is a TOML value, or else a string."""
    result: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        names = key.strip().split(".")
        if not sign or not all(names):
            raise RecipeError(f"--set {setting!r} is not valid; it must be table.key=value, such as data.timesteps=4")
        tree: dict[str, Any] = toml.value(text.strip())
        for name in reversed(names):
            tree = {name: tree}
        result = merge(result, tree, {})  # what is set together belongs together, in any order
    return result


def parse(document: dict[str, Any], name: str = "recipe") -> Recipe:
    """Plain values, checked."""
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{name}: {explain(error, Recipe)}") from None


def _decides(changes: dict[str, Any]) -> bool:
    """Whether some overrides make another configuration, rather than run the same one elsewhere."""
    return any(
        f"{table}.{key}" not in INCIDENTAL
        for table, keys in changes.items()
        for key in (keys if isinstance(keys, dict) else [""])
    )


def load_recipe(recipe: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """A packaged recipe by name, or a file by path, with ``--set`` overrides on top.

    An overridden recipe is no longer the paper's configuration, so it loses its published and measured numbers.
    """
    path = recipe_path(recipe)
    document, changes = inherited(path), overrides(settings)
    if _decides(changes):
        document = {k: v for k, v in document.items() if k not in PRIVATE[1:]}
    return parse(merge(document, changes), path.stem)

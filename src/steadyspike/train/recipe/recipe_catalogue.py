"""The available recipes: the packaged files, and the names of the recipes in a file with ``[grid]``."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.train.recipe import toml
from steadyspike.train.recipe.grid import expand
from steadyspike.train.recipe.table import RecipeError, named
from steadyspike.train.recipe.toml import merge

ALL = "all"  # FILE.toml:all: every recipe of a file with [grid]
GROUPS = "groups.toml"  # titles of the folders, for lists


class Source(NamedTuple):
    """The source of a recipe: its name, its file, and whether the file is a grid with other recipes too."""

    name: str
    path: Path
    in_grid: bool

    @property
    def group(self) -> str:
        """Returns the folder of a packaged recipe, whose recipes lists show together."""
        return self.path.parent.name


def recipe_root() -> Path:
    """Returns the folder of the packaged recipes."""
    return Path(str(files("steadyspike"))) / "recipes"


def group_titles() -> dict[str, str]:
    """Returns folder -> what its recipes are, in the order of a list."""
    return dict(read(recipe_root() / GROUPS))


def read(path: Path) -> dict[str, Any]:
    """Returns a recipe file as plain values, not yet expanded and without its base.

    The result is cached, so do not change it.
    """
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1024)
def _read(path: Path, changed: int) -> dict[str, Any]:
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{named(path.name)} is not TOML: {error}") from None


def recipes_of(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the recipes of a file, by name: one with the file's name, or those of its grid."""
    document = read(path)
    if "grid" not in document:
        return {path.stem: dict(document)}
    return {name: dict(recipe) for name, recipe in _grid(path, path.stat().st_mtime_ns).items()}


@lru_cache(maxsize=64)
def _grid(path: Path, changed: int) -> dict[str, dict[str, Any]]:
    return expand(_read(path, changed), path.name, lambda base, over: merge(base, over, {}))


@lru_cache(maxsize=1)
def packaged() -> dict[str, Source]:
    """Returns all packaged recipes by name, including those in ``base/``. The result is cached, so do not change it."""
    sources: dict[str, Source] = {}
    for path in sorted(path for path in recipe_root().rglob("*.toml") if path.name != GROUPS):
        in_grid = "grid" in read(path)
        for name in recipes_of(path) if in_grid else (path.stem,):
            if name in sources:
                raise RecipeError(f"two packaged recipes are called {name}: {sources[name].path.name} and {path.name}")
            sources[name] = Source(name, path, in_grid)
    return sources


def recipe_names(bases: bool = False) -> list[str]:
    """Returns the names of the packaged recipes; those in the folder ``base/`` only on request."""
    return sorted(name for name, source in packaged().items() if bases or source.group != "base")


def find_recipe(recipe: str | Path) -> Source:
    """Finds a packaged recipe by name, or a file by path; ``FILE.toml:NAME`` is one recipe of a file with a grid."""
    text = str(recipe)
    file, _, cell = text.rpartition(":") if ".toml:" in text else (text, "", "")
    if file.endswith(".toml"):
        return _in_file(Path(file), cell)
    sources = packaged()
    if text not in sources:
        near = get_close_matches(text, list(sources), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(
            f"there is no recipe {named(text)}{hint} (`steadyspike recipes` lists them; a file ends in .toml)"
        )
    return sources[text]


def _in_file(path: Path, cell: str) -> Source:
    try:
        there = path.is_file()
    except OSError as error:  # such as a name that is too long for a file
        raise RecipeError(f"{named(str(path))}: {error.strerror}") from None
    if not there:
        raise RecipeError(f"there is no recipe file {named(str(path))}")
    if "grid" not in read(path):
        if cell:
            raise RecipeError(f"{path} contains one recipe: leave out ':{cell}'")
        return Source(path.stem, path, False)
    names = list(recipes_of(path))
    if cell not in names:
        raise RecipeError(
            f"{path} has a [grid]: `steadyspike train {path}:{ALL}` trains all of it; or choose one of its recipes, "
            f"such as {path}:{names[0]}; it has {', '.join(names)}"
        )
    return Source(cell, path, True)


def each_of(recipe: str) -> list[str]:
    """Returns the names of all recipes for ``FILE.toml:all`` of a file with ``[grid]``; otherwise the given name."""
    file, _, cell = recipe.rpartition(":")
    return names_in(file) if cell == ALL and file.endswith(".toml") else [recipe]


def names_in(file: str) -> list[str]:
    """Returns all recipes of a file, as `find_recipe` accepts them."""
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no recipe file {named(file)}")
    return [f"{file}:{name}" for name in recipes_of(path)] if "grid" in read(path) else [file]


def recipe_path(recipe: str | Path) -> Path:
    """Returns the file that contains a recipe."""
    return find_recipe(recipe).path

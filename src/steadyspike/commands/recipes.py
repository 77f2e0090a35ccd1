"""`steadyspike recipes`: lists recipes, shows one with the meaning of its keys, prints the page of all keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import typer

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors
from steadyspike.commands.options import Settings
from steadyspike.commands.terminal import SafeConsole

_MANY = 12  # a list without words shows the recipes of a grid with more recipes than this as one line
_HELP = """paper: published; measured: with this library, mean ± standard deviation (seeds)
one recipe, explained: steadyspike recipes --show NAME"""
_HELP_GRIDS = "\nall of a family: steadyspike recipes frozen (or --all)"
_WIDE = 150  # the number of columns from which there is room for more than names and numbers


@one_line_errors
def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Recipes with all these words in name or description, or those of a FILE.toml."),
    ] = None,
    where: Annotated[str, typer.Option(help="Only those of one table or figure: 'table 2', 'figure 9'.")] = "",
    show: Annotated[str | None, typer.Option(metavar="NAME", help="Print one resolved recipe, explained.")] = None,
    settings: Settings = None,
    every: Annotated[bool, typer.Option("--all", help="Also each recipe of the large grids.")] = False,
    bases: Annotated[bool, typer.Option("--bases", help="Also those that are only bases of others.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Print all keys of a recipe as Markdown.")] = False,
) -> int:
    """List the recipes with the paper's number and the measured ones, or explain one."""
    if keys:
        return show_keys()
    if show is not None:
        return show_one(show, settings=settings or [])
    return run(words or [], where=where, bases=bases, every=every)


def show_one(name: str, settings: list[str]) -> int:
    """Prints one resolved recipe, with default values in dim colour."""
    from steadyspike.commands.shared.recipe_keys import explained
    from steadyspike.results.measured import recorded
    from steadyspike.train.recipe import find_recipe, load_recipe

    text = explained(load_recipe(name, settings), min(max(console.width, 60), 120))
    entries = [] if settings else recorded(find_recipe(name))
    text += "".join(f"\n# measured: {entry.text}" for entry in entries) + "\n" * bool(entries)
    if not console.is_terminal:
        print(text, end="")
        return ENDED
    for line in text.splitlines():
        left, sign, comment = line.partition("#")
        console.print(left, end="", soft_wrap=True, style="bold" if left.startswith("[") else None)
        console.print(sign + comment, soft_wrap=True, style="dim")
    return ENDED


def show_keys() -> int:
    """Prints docs/recipe-keys.md."""
    from steadyspike.commands.shared.recipe_keys import page

    print(page(), end="")
    return ENDED


class Line(NamedTuple):
    """One recipe of the list."""

    name: str
    group: str
    grid: str  # the file of the grid that contains it, or ""
    recipe: Any
    measured: Any  # `Summary` of the recorded numbers, or None


def run(words: list[str], where: str, bases: bool, every: bool) -> int:
    """Prints the list: recipes whose name, folder or text has all the words, and that are at ``where`` in the paper.

    A word that ends in .toml is the user's own file, whose recipes are listed.
    """
    from steadyspike.train.recipe.recipe_catalogue import group_titles

    own_files = [word for word in words if word.endswith(".toml")]
    if own_files:
        for file in own_files:
            _print_group(file, list(_in_file(file)), short=False)
        console.print("\n" + _HELP + "\ntrain them all: steadyspike train FILE.toml:all", style="dim")
        return ENDED
    titles = group_titles()
    lines = list(_matching(words, where, bases))
    if not lines:
        errors.print(_nothing(words, where), style="red", soft_wrap=True)
        return FAILED
    short = not (every or words or where)
    for group in [*titles, *sorted({line.group for line in lines} - set(titles))]:
        own = sorted((line for line in lines if line.group == group), key=lambda line: line.name)
        if own:
            _print_group(titles.get(group, group), own, short)
    console.print("\n" + _HELP + (_HELP_GRIDS if short else ""), style="dim")
    return ENDED


def _matching(words: list[str], where: str, bases: bool) -> Iterable[Line]:
    from steadyspike.paper.work.recorded import Recorded
    from steadyspike.train.recipe import load_recipe
    from steadyspike.train.recipe.recipe_catalogue import packaged

    recorded = Recorded()
    for name, source in packaged().items():
        if source.group == "base" and not bases:
            continue
        recipe = load_recipe(name)
        parts = (name, source.group, recipe.about, recipe.data.name, recipe.model.name, recipe.neuron.name)
        text = " ".join(parts).lower()
        if all(word.lower() in text for word in words) and (not where or _is_at(recipe, where)):
            grid = source.path.stem if source.in_grid else ""
            yield Line(name, source.group, grid, recipe, recorded.summary(name))


def _in_file(file: str) -> Iterable[Line]:
    """Returns the recipes of a file, by the names that `train` accepts."""
    from steadyspike.train.recipe import load_recipe
    from steadyspike.train.recipe.recipe_catalogue import names_in

    for name in names_in(file):
        yield Line(name, "", "", load_recipe(name), None)


def _is_at(recipe: Any, where: str) -> bool:
    """Returns whether the paper has this configuration at ``where``: "table 2", "figure 9", "supplement frozen"."""
    paper = f"{recipe.paper.where} {recipe.paper.note}" if recipe.paper is not None else ""
    shown_at = f"{recipe.shown} {paper}".lower()
    pairs = re.findall(r"[a-z]+\s+[0-9]+|\S+", where.lower())  # a number belongs to the word before it
    return all(re.search(rf"\b{re.escape(' '.join(pair.split()))}\b", shown_at) for pair in pairs)


def _nothing(words: list[str], where: str) -> str:
    asked = " and ".join(repr(word) for word in words)
    condition = f"at {where!r} in the paper" if where else ""
    return " ".join(["there is no recipe", *([f"with {asked} in its name or description"] if asked else []), condition])


def _print_group(title: str, lines: list[Line], short: bool) -> None:
    from rich.table import Table

    # Names and numbers matter most: a narrow terminal shows only them.
    screen = console if console.is_terminal else SafeConsole(width=240, file=console.file)
    wide = screen.width >= _WIDE
    table = Table(
        box=None, pad_edge=False, highlight=False, header_style="dim", title=f"\n{title}", title_justify="left"
    )
    table.title_style = "bold"
    table.add_column("recipe", no_wrap=True, min_width=41)
    for column in ("paper", "measured"):
        table.add_column(column, justify="right", no_wrap=True, min_width=15)
    for column in ("data", "network", "T", "about") if wide else ():
        table.add_column(column, no_wrap=column != "about", overflow="fold")
    for grid, own in _by_grid(lines):
        if short and grid and len(own) > _MANY:
            table.add_row(*_as_one(grid, own))
            continue
        for line in own:
            recipe = line.recipe
            more = (recipe.data.name, recipe.model.name, str(recipe.data.timesteps), recipe.about) if wide else ()
            table.add_row(line.name, _paper(recipe), _measured(line.measured), *more)
    screen.print(table)


def _by_grid(lines: list[Line]) -> Iterable[tuple[str, list[Line]]]:
    for grid in dict.fromkeys(line.grid for line in lines):
        yield grid, [line for line in lines if line.grid == grid]


def _as_one(grid: str, lines: list[Line]) -> tuple[str, str, str]:
    """One row for a whole grid: its first recipe, how many recipes it has, and how many of them have numbers."""
    published = sum(line.recipe.paper is not None for line in lines)
    measured = sum(line.measured is not None for line in lines)
    return (
        f"{lines[0].name} ... ({len(lines)})",
        f"{published} numbers" if published else "",
        f"{measured} numbers" if measured else "",
    )


def _paper(recipe: Any) -> str:
    if recipe.paper is None:
        return ""
    if recipe.paper.value is None:
        return str(recipe.paper.verdict) if len(recipe.paper.verdict) <= 15 else "in words"
    spread = f" ± {recipe.paper.spread:.2f}" if recipe.paper.spread is not None else ""
    return f"{recipe.paper.value:.2f}{spread}"


def _measured(summary: Any) -> str:
    if summary is None:
        return ""
    spread = f" ± {summary.variance**0.5:.2f} ({summary.seeds})" if summary.seeds > 1 else ""
    return f"{summary.mean:.2f}{spread}"

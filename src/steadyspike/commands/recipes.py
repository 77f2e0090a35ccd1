"""`steadyspike recipes`."""

from __future__ import annotations

from typing import Any

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors


@one_line_errors
def run(match: str, bases: bool) -> int:
    """Prints the table."""
    from rich.console import Console
    from rich.table import Table

    from steadyspike.train.recipe import load_recipe, recipe_names

    names = [name for name in recipe_names(bases) if match.lower() in name.lower()]
    if not names:
        errors.print(f"no recipe has {match!r} in its name", style="red")
        return FAILED
    # Names and numbers are what the list is for: what a narrow terminal has no room for stays away whole.
    screen = console if console.is_terminal else Console(width=240, file=console.file)
    wide = screen.width >= 150
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("recipe", no_wrap=True)
    for column in ("paper", "measured"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("data", "network", "T") if wide else ():
        table.add_column(column, no_wrap=True)
    if wide:
        table.add_column("about", overflow="fold")
    for name in names:
        recipe = load_recipe(name)
        more = (recipe.data.name, recipe.model.name, str(recipe.data.timesteps), recipe.about) if wide else ()
        table.add_row(name, _paper(recipe), _measured(recipe), *more)
    screen.print(table)
    return ENDED


def _paper(recipe: Any) -> str:
    if recipe.paper is None:
        return ""
    if recipe.paper.value is None:
        return "-"
    spread = f" ± {recipe.paper.spread:.2f}" if recipe.paper.spread is not None else ""
    return f"{recipe.paper.value:.2f}{spread}"


def _measured(recipe: Any) -> str:
    values = [m.value for m in recipe.measured]
    if not values:
        return ""
    return f"{sum(values) / len(values):.2f}" + (f" ({len(values)} runs)" if len(values) > 1 else "")

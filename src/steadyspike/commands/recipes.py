"""`steadyspike recipes`."""

from __future__ import annotations

from typing import Any

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors


@one_line_errors
def run(match: str, bases: bool) -> int:
    """Prints the table."""
    from rich.table import Table

    from steadyspike.train.recipe import load_recipe, recipe_names

    names = [name for name in recipe_names(bases) if match.lower() in name.lower()]
    if not names:
        errors.print(f"no recipe has {match!r} in its name", style="red")
        return FAILED
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recipe", "data", "network", "T"):
        table.add_column(column, no_wrap=True)
    table.add_column("paper", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("about", overflow="fold")
    for name in names:
        recipe = load_recipe(name)
        row = (name, recipe.data.name, recipe.model.name, str(recipe.data.timesteps))
        table.add_row(*row, _paper(recipe), _measured(recipe), recipe.about)
    console.print(table)
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

"""`steadyspike plan`: what a recipe would need on a GPU that is not available: memory, batch, time of a step, hours."""

from __future__ import annotations

from typing import Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, Settings


@one_line_errors
def command(
    recipe: Annotated[str, typer.Argument(help="A name that `steadyspike recipes` lists, or a .toml file.")],
    card: Annotated[str, typer.Option(help="The GPU: 3090, 4090, 5090, a100-40, a100 or h100.")] = "4090",
    cards: Annotated[int, typer.Option(min=1, help="The number of GPUs.")] = 1,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step over all cards.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Training samples of your own data set.")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> int:
    """Predict memory, step time and hours of a recipe on a GPU, from counted bytes and operations."""
    from steadyspike.analysis.gpu.cards import CARDS
    from steadyspike.analysis.gpu.plan import plan
    from steadyspike.train.recipe.load import load_recipe

    if card.lower() not in CARDS:
        raise typer.BadParameter(f"unknown card {card!r}; known: {', '.join(CARDS)}", param_hint="--card")
    loaded = load_recipe(recipe, settings or [])
    prediction = plan(loaded, card, cards=cards, batch=batch, samples=samples, data_dir=data_dir)
    console.print(str(prediction), soft_wrap=True)
    return ENDED

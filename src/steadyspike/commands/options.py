"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a key of the recipe; may be given several times."),
]


def run_argument(text: str) -> Path:
    """Returns the given run folder, or the folder of a network of the zoo by its name."""
    from steadyspike.commands.common import run_or_name

    return run_or_name(text)


Run = Annotated[
    Path, typer.Argument(metavar="RUN", parser=run_argument, help="A run folder, or a name of `steadyspike zoo`.")
]
RunOrFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", parser=run_argument, help="A run folder, a name of the zoo, or a folded network's file."
    ),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds data sets.")]

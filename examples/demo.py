"""`make demo`: the same small network with and without MP-Init + TrSG, on handwritten digits that need no download.

Trains the recipes demo-baseline and demo, prints the test accuracy of both after every time step, draws a figure, and
writes a page in which the trained network runs (network.html).
"""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

from steadyspike.commands.export import command as export
from steadyspike.disk.plain_text import duration
from steadyspike.report.run_figure import draw_runs
from steadyspike.train.files.folder import RunFolder, new_folder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.display import Display
from steadyspike.train.run.training import train

RUNS = {"demo-baseline": "baseline", "demo": "MP-Init + TrSG"}


def main(settings: list[str]) -> None:
    console, start = Console(highlight=False), time.monotonic()
    parent = new_folder(None, "make-demo")
    runs, accuracies = {}, {}
    for name, label in RUNS.items():
        recipe = load_recipe(name, settings)
        console.rule(f"[bold]{label}[/] - {recipe.about}", align="left")
        folder = RunFolder(parent.root / name)
        folder.root.mkdir()
        result = train(recipe, folder, display=Display)
        if result["status"] == "interrupted":
            raise SystemExit(128 + result["signal"])
        accuracies[label] = result["test"]["accuracy"]
        runs[label] = folder
    table = Table(
        title="\ntest accuracy in % after each number of time steps", title_style="bold", title_justify="left"
    )
    table.add_column("")
    for step in range(1, len(accuracies[label]) + 1):
        table.add_column(str(step), justify="right")
    for label, accuracy in accuracies.items():
        table.add_row(label, *(f"{a:.1f}" for a in accuracy))
    console.print(table)
    figure = draw_runs(runs, parent.root / "demo.png")
    console.print(f"figure: {figure.resolve()}", markup=False, soft_wrap=True)
    export(runs[RUNS["demo"]].root, to="page", out=parent.root / "network.html")
    console.print(
        f"took {duration(time.monotonic() - start)}; everything is in {parent.root}", markup=False, soft_wrap=True
    )


if __name__ == "__main__":
    main(sys.argv[1:])

"""`steadyspike train`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors, print_scores, record_number
from steadyspike.commands.options import DataDir, Settings
from steadyspike.train.state.signals import Signals, Stopped, exit_code


@one_line_errors
def command(
    recipe: Annotated[str, typer.Argument(help="A name that `steadyspike recipes` lists, or a .toml file.")],
    settings: Settings = None,
    data_dir: DataDir = None,
    devices: Annotated[int | None, typer.Option(help="Processes: GPUs, or CPU processes without one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped or killed.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE/001.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Start with these weights: a run, a name of the zoo.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Add the test numbers to the recipe's results, which `recipes` shows.")
    ] = False,
) -> int:
    """Train a recipe. Exit codes: 0 ended (also a run that diverged), 130 and 143 stopped by a signal: use --resume."""
    from steadyspike.train.recipe import RecipeError
    from steadyspike.train.recipe.recipe_catalogue import each_of

    if start is not None and not start.strip():
        raise RecipeError("--from is empty: give the folder of a run or a name of the zoo, or leave it out")
    changes = [*(settings or [])]
    changes += [] if start is None else [f"train.start={start}"]
    changes += [] if devices is None else [f"train.devices={devices}"]
    names, code = each_of(recipe), ENDED  # FILE.toml:all: the recipes of a grid, each in a folder with its name
    with Signals(commands=True) as signals:
        try:
            for count, one in enumerate(names, 1):
                folder = out
                if len(names) > 1:
                    console.print(f"\nrecipe {count} of {len(names)}: {one}", style="bold", soft_wrap=True)
                    folder = None if out is None else out / one.rpartition(":")[2]
                code, root = _run(one, changes, data_dir, resume, folder, signals)
                if record and code == ENDED and root is not None:
                    record_number(root, one)
                if code != ENDED:
                    break
            return code
        except Stopped as stop:
            number = signal.Signals(stop.number)
            console.print(f"stopped by {number.name} before the run began: run the same command again", style="yellow")
            return exit_code(number)


def _run(
    name: str, changes: list[str], data_dir: Path | None, resume: bool, out: Path | None, signals: Signals
) -> tuple[int, Path | None]:
    """Returns the exit code and, in the one process that reports about the run, its folder."""
    from steadyspike.train.recipe import RecipeError, find_recipe, load_recipe
    from steadyspike.train.recipe.load import origin
    from steadyspike.train.run.display import Display
    from steadyspike.train.run.start import Order, start
    from steadyspike.train.state.processes import under_torchrun

    recipe, stem = load_recipe(name, changes), find_recipe(name).name
    again = ["train", name, *(text for change in changes for text in ("--set", change))]
    order = Order(recipe, stem, origin(name, changes), again, data_dir, resume, out)
    try:
        started = start(order, signals, Display, lambda folder: _live(recipe, folder))
    except RecipeError as error:
        raise RecipeError(f"{stem}: {error}") from None
    root, result = started.folder.root, started.result
    if started.told:
        return _code(result), None if under_torchrun() else root
    if started.before:
        console.print("this run has ended already", style="yellow")
    if not (started.before and (root / "figure.png").exists()):
        try:
            _last_report(recipe, started.folder, data_dir)
            draw(result, started.folder)  # last: a resume of an ended run writes both if there is no figure
        except Stopped as stop:
            text = f"stopped by {signal.Signals(stop.number).name} after the run ended; --resume draws its figure"
            console.print(text, style="yellow")
            return exit_code(stop.number), root
    return report(result, root), root


def _live(recipe: Any, folder: Any) -> Callable[[], None] | None:
    """Returns the writer of report.html while the run trains; None if the recipe does not request it."""
    if not recipe.train.report:
        return None
    from steadyspike.report.live import LiveReport

    return LiveReport(folder.root)


def _last_report(recipe: Any, folder: Any, data_dir: Path | None) -> None:
    """Writes the report of the run in its present state.

    Like the figure, it is optional: if it fails, the run does not.
    """
    if not recipe.train.report:
        return
    try:
        from steadyspike.commands.report import add_details
        from steadyspike.report.live import PAGE
        from steadyspike.report.run_view import read_run
        from steadyspike.report.write_page import write_report

        view = read_run(folder.root)
        add_details(view, data_dir, False)
        write_report([view], folder.root / PAGE)
    except Exception as error:
        _no_report(f"{type(error).__name__}: {error}")


def _no_report(text: str) -> None:
    console.print(f"no report: {text}", style="yellow", markup=False, soft_wrap=True)


def _code(result: dict[str, Any]) -> int:
    return exit_code(result["signal"]) if result["status"] == "interrupted" else ENDED


def draw(result: dict[str, Any], folder: Any) -> None:
    """Draws the run's figure. If it cannot be drawn, this is reported, and the run does not fail."""
    if result["status"] == "interrupted":
        return
    try:
        from steadyspike.report.run_figure import draw_runs

        draw_runs({f"{folder.root.parent.name}/{folder.root.name}": folder}, folder.root / "figure.png")
    except Exception as error:
        console.print(f"no figure: {type(error).__name__}: {error}", style="yellow", markup=False, soft_wrap=True)


def report(result: dict[str, Any], root: Path) -> int:
    """Prints how a run ended."""
    status = result["status"]
    if status == "interrupted":
        name = signal.Signals(result["signal"]).name
        console.print(
            f"stopped by {name} {result['where']}; the same command with --resume continues in {root}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        return _code(result)
    if status != "finished":
        console.print(f"\n{status}: {result['message']}", style="bold red", markup=False, soft_wrap=True)
    console.print()
    print_scores("test", result["test"], str(result["weights"]))
    if (paper := result.get("paper")) is not None and paper.get("value") is not None:
        spread = f" ± {paper['spread']}" if paper.get("spread") is not None else ""
        note = f"; {paper['note']}" if paper.get("note") else ""
        console.print(f"the paper: {paper['value']}{spread} {paper['unit']} ({paper['where']}){note}", soft_wrap=True)
    if (root / "figure.png").exists():
        console.print(f"figure: {root / 'figure.png'}", markup=False, soft_wrap=True)
    if (root / "report.html").exists():
        console.print(f"report: {root / 'report.html'}", markup=False, soft_wrap=True)
    console.print(f"everything is in {root}", markup=False, soft_wrap=True)
    return ENDED

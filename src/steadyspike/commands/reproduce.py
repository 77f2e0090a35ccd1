"""`steadyspike reproduce`: makes a table or figure of the paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyspike.commands.common import ENDED, console, errors, one_line_errors
from steadyspike.commands.options import DataDir
from steadyspike.commands.terminal import SafeConsole

_MINI_SEEDS = 2


@one_line_errors
def command(
    name: Annotated[
        str | None, typer.Argument(help="A name of --list, or a number in the paper: table-2, figure-9.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List every table and figure with what it needs.")] = False,
    scale: Annotated[
        str, typer.Option(help="mini (minutes on a CPU), deep (hours), narrow (a day) or paper (the full experiment).")
    ] = "mini",
    data: Annotated[str, typer.Option(help="mini: another data set than the embedded digits, such as cifar10.")] = "",
    data_dir: DataDir = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of runs of each configuration; default: 3, mini 2.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and pages.")] = Path("reproduced"),
    show: Annotated[bool, typer.Option("--show", help="Train nothing: show the results so far.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Add the numbers to the recipes' results, which `recipes` shows.")
    ] = False,
) -> int:
    """Make a table or figure of the paper. It can be stopped and started again; finished results are kept."""
    if listed or name is None:
        return show_list()
    return run(name, scale=scale, data=data, data_dir=data_dir, seeds=seeds, out=out, train=not show, record=record)


def show_list() -> int:
    """Prints every table and figure with what it needs."""
    from rich.table import Table

    from steadyspike.paper.registry import EXPERIMENTS

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "in the paper", "shows", "runs", "scales"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "in the paper"))
    for experiment in EXPERIMENTS.values():
        count = len(experiment.cases(experiment.scales[0]))
        runs, scales = f"{count} x seeds" if count else "none", ", ".join(experiment.scales)
        table.add_row(experiment.name, experiment.where, experiment.title, runs, scales)
    _screen().print(table)
    console.print(
        "\nmini: embedded digits, minutes on a CPU; deep: CIFAR-10 at 16 x 16, hours; paper: the paper's own recipes",
        style="dim",
        soft_wrap=True,
    )
    return ENDED


def _screen() -> Any:
    return console if console.is_terminal else SafeConsole(width=160, file=console.file)


def run(
    name: str,
    scale: str,
    data: str,
    data_dir: Path | None,
    seeds: int | None,
    out: Path,
    train: bool,
    record: bool,
) -> int:
    """Returns the exit code of one table or figure; with ``train`` False it only shows the results so far."""
    from steadyspike.paper.registry import find
    from steadyspike.paper.work.scales import Scale
    from steadyspike.paper.work.store import Store
    from steadyspike.paper.work.work import Work

    experiment = find(name)
    if scale not in experiment.scales:
        raise _wrong(f"{experiment.name} has no scale {scale!r}: give --scale {' or '.join(experiment.scales)}")
    if data and scale != "mini":
        raise _wrong("--data belongs to --scale mini: the recipes of the other scales name their data")
    if data:
        data = _data_name(data)
    seeds = seeds or (min(experiment.seeds, _MINI_SEEDS) if scale == "mini" else experiment.seeds)
    work = Work(Scale(scale, data), seeds, Store(out), data_dir)
    code = _train(experiment, work) if train else ENDED
    _show(experiment, work)
    if record:
        _record(experiment, work)
    return code


def _data_name(data: str) -> str:
    """Returns the data set's own name, because under another name event data would be taken for images.

    The user's code keeps its name.
    """
    from steadyspike.data.dataset_catalogue import entry
    from steadyspike.data.errors import DataError
    from steadyspike.train.build.own_code import is_own

    try:
        return data if is_own(data) else entry(data)[0]
    except DataError as error:
        raise _wrong(f"--data: {error}") from None


def _wrong(text: str) -> Exception:
    from steadyspike.train.recipe import RecipeError

    return RecipeError(text)


def _train(experiment: Any, work: Any) -> int:
    """Trains what is missing; if the list is interrupted, it still shows the results so far."""
    runs = work.all_runs(experiment.cases(work.scale.name))
    if not work.store.missing(runs):  # without the trainer's imports, which take seconds
        return ENDED
    from steadyspike.paper.runner import Interrupted, train_missing
    from steadyspike.train.state.signals import Signals, Stopped, exit_code

    with Signals(commands=True) as signals:
        try:
            train_missing(runs, work.store, work.data_dir, console, signals)
            return ENDED
        except (Interrupted, Stopped) as stop:
            console.print("stopped; the same command continues from here. So far:\n", style="yellow")
            return exit_code(stop.number)


def _show(experiment: Any, work: Any) -> None:
    from steadyspike.paper.figures.style import save

    with console.status("reading the results") as status:
        page = experiment.page(replace(work, announce=status.update))
    if work.scale.note and experiment.cases(work.scale.name):
        page.notes.append(work.scale.note)
    if broken := work.store.unfinished(work.all_runs(experiment.cases(work.scale.name))):
        names = ", ".join(run.label for run in broken)
        page.notes.append(
            f"started but not finished, or damaged: {names}; the command without --show continues with them"
        )
    console.print(page.text(), soft_wrap=True)
    folder = f"{experiment.name}-{work.scale.label}"
    path = work.store.write_text(f"{folder}/page.md", page.markdown())
    for name, figure in page.figures.items():
        for ending in ("png", "pdf"):
            save(figure, path.parent / f"{name}.{ending}")
    console.print(f"\nwritten to {path.parent}", soft_wrap=True)


def _record(experiment: Any, work: Any) -> None:
    """Records the numbers of the recipes that were run unchanged."""
    from steadyspike.results.recording import record
    from steadyspike.train.files.folder import RunError, RunFolder

    if work.scale.name == "mini":
        errors.print("nothing was recorded: mini runs do not have the recipes' own configurations", style="yellow")
        return
    for case in experiment.cases(work.scale.name):
        for result in work.results(case):
            try:
                entry = record(RunFolder(result.folder), result.run.recipe)
                console.print(f"recorded {entry.value} (seed {entry.seed}) of {entry.recipe}")
            except RunError as error:
                console.print(str(error), style="dim", soft_wrap=True)

"""`steadyspike report`: one HTML file about one run or several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, run_argument

if TYPE_CHECKING:
    from steadyspike.report.run_view import RunView
    from steadyspike.train.files.folder import RunFolder


@one_line_errors
def command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN [RUN...]", parser=run_argument, help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; default: report.html in the run, or next to the runs.")
    ] = None,
    data_dir: DataDir = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Leave out the parts that need the data: confusion, samples, membranes.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Several runs: the one to compare with; default: the first.")
    ] = None,
) -> int:
    """Write one HTML file about a run, or about several runs; it needs no other file."""
    from steadyspike.report.run_view import read_runs
    from steadyspike.report.write_page import write_report

    other = [] if baseline is None or baseline.resolve() in [one.resolve() for one in folders] else [baseline]
    if out is not None:
        check_place(out)
    views = read_runs([*folders, *other])
    for view in views:
        add_details(view, data_dir, no_data)
    base = next((v for v in views if baseline is not None and v.root.resolve() == baseline.resolve()), None)
    path = write_report(views, out or default_place(folders), base)
    for view in views:
        for text in [*([] if view.state.ended else [view.state.text]), *view.warnings]:
            console.print(f"{view.label}: {text}", style="yellow", soft_wrap=True)
    console.print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    return ENDED


def check_place(out: Path) -> None:
    """Raises an error for a target that a report must not replace: a folder, a device, a file that is not HTML."""
    from steadyspike.train.files.folder import RunError

    if not out.exists():
        return
    if not out.is_file():
        raise RunError(f"{out} is not a file: name the file that the report is written to")
    with open(out, "rb") as file:
        start = file.read(15).lower()
    if start not in (b"", b"<!doctype html>"):
        raise RunError(f"{out} exists and is not an HTML page: the report does not replace it")


def default_place(roots: list[Path]) -> Path:
    """Returns report.html in the run folder; for several runs in the folder that contains them all."""
    from steadyspike.report.live import PAGE

    resolved = {root.resolve() for root in roots}
    if len(resolved) == 1:
        return roots[0] / PAGE
    common = Path(os.path.commonpath(resolved))
    return (common.parent if (common / "recipe.toml").exists() else common) / PAGE


def add_details(view: RunView, data_dir: Path | None, no_data: bool) -> None:
    """Returns confusion, samples and membranes: stored ones, or new ones; a note if that is not possible."""
    from steadyspike.report.live import is_current
    from steadyspike.train.files.folder import RunFolder

    folder = RunFolder(view.root)
    if not is_current(view.energy, folder):
        view.energy = None
    if not view.state.ended or is_current(view.details, folder):
        return
    view.details = None
    if not view.kind.classifies:
        return  # a detection run has stored pictures of its predictions
    if no_data:
        view.notes.append(f"{view.label}: predictions were left out (--no-data).")
        return
    _make(view, folder, data_dir)


def _make(view: RunView, folder: RunFolder, data_dir: Path | None) -> None:
    """Runs the network. The imports for it are inside, because they take seconds."""

    from steadyspike.data.errors import DataError
    from steadyspike.report.details import make_details
    from steadyspike.train.files.folder import RunError
    from steadyspike.train.recipe import RecipeError

    try:
        with console.status(f"computing the predictions of {view.label}"):
            view.details = make_details(folder, data_dir)
    except (DataError, RecipeError, RunError, OSError) as error:
        note = f"no predictions, because {error}"
        view.notes.append(f"{view.label}: {note}")
        if isinstance(error, RunError):
            view.warnings.append(note)  # damaged weights or other data, and not only data in another folder
        else:
            console.print(view.notes[-1], style="yellow", soft_wrap=True)

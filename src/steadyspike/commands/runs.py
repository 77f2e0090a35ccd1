"""`steadyspike runs`: every run below a folder in one list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors
from steadyspike.commands.terminal import STYLES, bare_table, when, wide_enough

if TYPE_CHECKING:
    from steadyspike.report.run_list import RunLine


@one_line_errors
def command(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that holds runs.")] = Path("runs"),
    words: Annotated[
        list[str] | None, typer.Argument(help="Only runs with all these words in their path or recipe.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only running, stopped, killed, finished, diverged, silent, collapsed or damaged."),
    ] = None,
    sort: Annotated[str, typer.Option(help="changed, accuracy or name; the highest comes last.")] = "changed",
    last: Annotated[int | None, typer.Option(min=1, help="Only this many, from the end of the list.")] = None,
) -> int:
    """List all runs below a folder: recipe, state, accuracy, time of the last change and duration."""
    if sort not in ("changed", "accuracy", "name"):
        raise typer.BadParameter(f"{sort!r} is not changed, accuracy or name", param_hint="--sort")
    from rich.text import Text

    from steadyspike.disk.plain_text import duration
    from steadyspike.report.run_list import list_runs

    all_runs = list_runs(root)
    lines = [line for line in all_runs if _is_chosen(line, words or [], state)]
    if not lines:
        asked = " that fits" if all_runs else ""
        errors.print(f"there is no run{asked} below {root}", style="red", soft_wrap=True)
        return FAILED
    if sort == "accuracy":
        lines.sort(key=lambda line: (line.measure.name, -1.0 if line.score is None else line.score))
    elif sort == "name":
        lines.sort(key=lambda line: str(line.path))
    columns = ("run", "recipe", "state", "score", "", "changed", "took")
    table = bare_table(*columns, right=("score", "changed", "took"), fold=("run",))
    shown = lines[-last:] if last else lines
    for line in shown:
        at = f" {line.epoch}/{line.epochs}" if line.epoch is not None else ""
        mark = "" if line.part == "test" else "*"
        table.add_row(
            str(line.path.relative_to(root) if line.path != root else line.path),
            line.recipe,
            Text(line.state + at, style=STYLES.get(line.state, "red")),
            "" if line.score is None else line.measure.number(line.score),
            "" if line.score is None else f"{line.measure.unit} {line.measure.name}{mark}".lstrip(),
            when(line.changed),
            "" if line.seconds is None else duration(line.seconds),
        )
    wide_enough(console).print(table)
    if any(line.score is not None and line.part != "test" for line in shown):
        console.print("* not of the test part: of the last epoch of a run without a result", style="dim")
    return ENDED


def _is_chosen(line: RunLine, words: list[str], state: str | None) -> bool:
    text = f"{line.path} {line.recipe}".lower()
    return all(word.lower() in text for word in words) and state in (None, line.state)

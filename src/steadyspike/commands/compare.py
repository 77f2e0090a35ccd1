"""`steadyspike compare`: compares runs, best first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steadyspike.commands.common import ENDED, console, errors, one_line_errors
from steadyspike.commands.options import run_argument
from steadyspike.commands.terminal import STYLES, bare_table, marks, wide_enough

if TYPE_CHECKING:
    from rich.console import Console

    from steadyspike.report.run_view import RunView
    from steadyspike.train.recipe.kinds import Measure


@one_line_errors
def command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", parser=run_argument, help="Run folders.")],
) -> int:
    """Compare runs: best first, what differs between their recipes, and the spread over seeds."""
    from steadyspike.report.comparison import best_first, groups, tested_on
    from steadyspike.report.run_view import read_runs

    runs = best_first(read_runs(folders))
    if len(runs) < 2:
        errors.print("error: compare needs two runs; one is shown by `steadyspike show`", style="red", soft_wrap=True)
        return 2
    screen = wide_enough(console)
    _table(screen, runs)
    for text in [tested_on(runs), *(f"{one.label}: {warning}" for one in runs for warning in one.warnings)]:
        if text is not None:
            screen.print(text, style="yellow", soft_wrap=True)
    _differences(screen, runs)
    if any(len(group.runs) > 1 for group in groups(runs)):
        _spread(screen, runs)
    return ENDED


def _table(screen: Console, runs: list[RunView]) -> None:
    from rich.text import Text

    from steadyspike.report.sparkline import sparkline
    from steadyspike.report.summary import against

    several = len({one.measure for one in runs}) > 1
    title = "score" if several else runs[0].measure.title
    curve = "by epoch" if several else f"{runs[0].measure.name} by epoch"
    columns = ("", "run", "state", title, "to best", "epoch", curve)
    table = bare_table(*columns, right=(title, "to best", "epoch"), fold=("run",))
    notes = set()
    first: dict[Measure, RunView] = {}
    ranges: dict[Measure, tuple[float, float]] = {}
    for one in runs:
        first.setdefault(one.measure, one)
        evaluated = [value for value in one.curve() if value is not None]
        low, high = ranges.get(one.measure, (math.inf, -math.inf))
        ranges[one.measure] = min([low, *evaluated]), max([high, *evaluated])
    for rank, one in enumerate(runs, 1):
        score, mark = one.score(), ""
        if score is not None and not score.final:
            mark = "*"
            notes.add(f"* {score.part} {one.measure.name} of the best epoch so far: this run has no result")
        behind = "" if one is first[one.measure] else against(one, first[one.measure])
        name = f" {one.measure.unit or one.measure.name}" if several else ""
        table.add_row(
            str(rank),
            one.label,
            Text(one.state.kind, style=STYLES.get(one.state.kind, "red")),
            "" if score is None else f"{one.measure.number(score.value)}{name}{mark}",
            "" if behind == "–" else behind,
            f"{one.epochs[-1] if one.epochs else 0}/{one.recipe.schedule.epochs}",
            sparkline(one.evaluated_curve(), 16, *ranges[one.measure], marks(screen)),
        )
    screen.print(table)
    paper = {_paper(one) for one in runs if one.recipe.paper is not None and one.recipe.paper.value is not None}
    for note in [*sorted(notes), *(f"the paper: {text}" for text in sorted(paper))]:
        screen.print(note, style="dim", soft_wrap=True)


def _paper(one: RunView) -> str:
    paper = one.recipe.paper
    assert paper is not None
    spread = f" ± {paper.spread}" if paper.spread is not None else ""
    return f"{paper.value}{spread} {paper.unit} ({paper.where})"


def _differences(screen: Console, runs: list[RunView]) -> None:
    """Prints one row per key if there is room for a column per run, otherwise one row per run."""

    from steadyspike.report.comparison import differing_keys

    differences = differing_keys(runs)
    if not differences:
        screen.print("\nthe recipes are equal", style="dim")
        return
    screen.print("\nwhat differs", style="bold")
    if len(runs) <= 4:
        table = bare_table("key", *(f"{index}: {one.label}" for index, one in enumerate(runs, 1)))
        for column in table.columns:
            column.no_wrap, column.overflow = False, "fold"
        for key, values in differences.items():
            table.add_row(key, *(shown(value) for value in values))
    else:
        table = bare_table("", "run", "what differs", fold=("run", "what differs"))
        for index, one in enumerate(runs):
            text = ", ".join(f"{key}={shown(values[index])}" for key, values in differences.items())
            table.add_row(str(index + 1), one.label, text)
    screen.print(table)


def shown(value: Any) -> str:
    """Returns a value of a recipe as TOML writes it, without quotes around plain words; a dash for none."""
    from steadyspike.train.recipe import toml

    if value is None:
        return "-"
    return value if isinstance(value, str) else toml.text(value)


def _spread(screen: Console, runs: list[RunView]) -> None:

    from steadyspike.report.comparison import groups

    screen.print("\nover seeds (mean ± sample standard deviation of runs that have ended)", style="bold")
    table = bare_table(
        "configuration of", "seeds", "mean", "", "runs", right=("mean", "runs"), fold=("configuration of", "seeds")
    )
    for group in groups(runs):
        measure = group.measure
        spread = "" if group.spread is None else f" ± {measure.number(group.spread)}"
        table.add_row(
            group.runs[0].label,
            ", ".join(str(seed) for seed in group.seeds),
            "" if group.mean is None else f"{measure.number(group.mean)}{spread}",
            "" if group.mean is None else measure.title,
            str(group.ended),
        )
    screen.print(table)

"""`steadyspike evaluate`."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors, print_scores, record_number
from steadyspike.commands.options import DataDir, Run
from steadyspike.data.errors import DataError


@one_line_errors
def command(
    folder: Run,
    data_dir: DataDir = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    split: Annotated[str | None, typer.Option(help="Another split than the run's; warns.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="If the number is reproduced, add it to the recipe's results.")
    ] = False,
    recipe: Annotated[str | None, typer.Option(help="With --record: the recipe, if it is not packaged.")] = None,
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Also show accuracy against average steps if samples stop early.")
    ] = False,
) -> int:
    """Evaluate the weights of a run and compare the result with the logged number."""
    code = run(folder, data_dir=data_dir, part=part, split=split, record=record, recipe=recipe)
    return show_early_exit(folder, data_dir=data_dir, part=part) if early_exit and code == ENDED else code


def run(
    folder: Path, data_dir: Path | None, part: str, split: str | None, record: bool = False, recipe: str | None = None
) -> int:
    """Exit code 1: the logged scores were not reproduced, or could not be recorded."""
    from rich.panel import Panel

    from steadyspike.data import SplitMismatchWarning
    from steadyspike.train.recipe.kinds import kind_of_result
    from steadyspike.train.run.evaluation import evaluate_run

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SplitMismatchWarning)
        evaluated = evaluate_run(folder, data_dir, part=part, split=split)
    for warning in caught:
        if issubclass(warning.category, SplitMismatchWarning):
            errors.print(Panel(str(warning.message), title="another split", style="bold red"))
    now = evaluated.scores.record()
    console.print(str(evaluated.bundle), soft_wrap=True)
    print_scores(part, now, _rest(now))
    if evaluated.reproduces is None:
        if evaluated.logged is None:
            console.print(f"the run logged no {part} accuracy of these weights to compare with", style="dim")
        return ENDED
    if evaluated.reproduces:
        console.print("equal to what the run logged", style="green")
        if record and part == "test":
            record_number(folder, recipe)
        return ENDED
    assert evaluated.logged is not None
    if evaluated.rounds:
        console.print(
            f"scores equal to what the run logged; its loss was {evaluated.logged['loss']} (another processor, or "
            "another number of threads, rounds differently)", style="green", soft_wrap=True,
        )  # fmt: skip
        return ENDED
    kind = kind_of_result(now)
    logged = ", ".join(map(kind.measure.number, kind.test_scores(evaluated.logged)))
    logged = f"{kind.measure.name} {logged} {kind.measure.unit}".rstrip()
    console.print(f"NOT what the run logged: {logged}, loss {evaluated.logged['loss']}", style="bold red")
    return FAILED


def _rest(record: dict[str, Any]) -> str:
    return f"loss {math.nan if record['loss'] is None else record['loss']:.4f} ({record['samples']} samples)"


def show_early_exit(folder: Path, data_dir: Path | None, part: str) -> int:
    """Prints a table: accuracy and average number of time steps for a few confidences at which a sample stops."""
    import torch
    from rich.table import Table

    from steadyspike.deploy import Confidence
    from steadyspike.deploy.early_exit import exit_curve
    from steadyspike.train.recipe.kinds import kind_of
    from steadyspike.train.run.loading import load_run

    loaded = load_run(folder, data_dir)
    if not (kind := kind_of(loaded.recipe)).classifies:
        raise DataError(f"--early-exit is for classes; this run finds {kind.finds}")
    rules = [Confidence(p) for p in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)]
    with torch.no_grad(), console.status("early exit"):
        outputs = ((loaded.model(x), y) for x, y in loaded.data.eval_loader(part, 64))
        curve = exit_curve(outputs, [*rules, None])
    table = Table("stops at confidence", "accuracy", "average steps")
    for rule, point in zip([*rules, None], curve):
        table.add_row(
            "never" if rule is None else f"{rule.probability:g}", f"{point.accuracy:.2%}", f"{point.steps:.2f}"
        )
    console.print(table)
    return ENDED

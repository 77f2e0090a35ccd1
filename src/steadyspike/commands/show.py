"""`steadyspike show`: one run at a glance, and live while it trains."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import Run
from steadyspike.commands.terminal import STYLES, bare_table, marks, number, wide_enough
from steadyspike.train.state.signals import exit_code

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steadyspike.report.run_view import RunView

_LOOK = 1.0  # seconds between two reads of a run that trains
_CURVE = 40  # characters of a curve


@one_line_errors
def command(
    folder: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the run again and again until it ends.")] = False,
) -> int:
    """One run at a glance: numbers, curves, layers, health; with --follow live while it trains."""
    from steadyspike.report.run_view import read_run

    view = read_run(folder)
    if not follow or view.state.kind != "running":
        wide_enough(console).print(glance(view, marks(console)))
        return ENDED
    try:
        return _live(folder, view) if console.is_terminal else _lines(folder, view)
    except KeyboardInterrupt:
        return exit_code(signal.SIGINT)


def _live(root: Path, view: RunView) -> int:
    from rich.live import Live

    with Live(glance(view, marks(console)), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while view.state.kind == "running":
            time.sleep(_LOOK)
            view = _again(root, view)
            live.update(glance(view, marks(console)), refresh=True)
    return ENDED


def _lines(root: Path, view: RunView) -> int:
    """For files and other programs: prints one line per epoch when it ends, then the whole run."""
    printed = 0
    while True:
        for epoch in range(printed, len(view.epochs)):
            loss, score = (column[epoch] for column in (view.metrics["train_loss"], view.curve()))
            part = view.part or "train"
            shown = "" if score is None else f"  {part} {view.measure.name} {view.measure.text(score)}"
            console.print(f"epoch {view.epochs[epoch]}/{view.recipe.schedule.epochs}  loss {number(loss, 4)}{shown}",
                          soft_wrap=True)  # fmt: skip
        printed = len(view.epochs)
        if view.state.kind != "running":
            wide_enough(console).print(glance(view, marks(console)))
            return ENDED
        time.sleep(_LOOK)
        view = _again(root, view)


def _again(root: Path, view: RunView) -> RunView:
    """Returns the current state of the run; the previous state if a file was just being replaced."""
    from steadyspike.report.run_view import read_run
    from steadyspike.train.files.folder import RunError

    try:
        return read_run(root)
    except (RunError, OSError):
        return view


def glance(view: RunView, blocks: str) -> RenderableType:
    """Prints everything about one run that fits on a screen of 80 columns."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble((view.label, "bold"), "  ", (view.state.kind, STYLES.get(view.state.kind, "bold red")))
    parts: list[RenderableType] = [head, _what(view)]
    if view.recipe.about:
        parts.append(Text(view.recipe.about, style="dim"))
    if view.state.kind != "finished":
        parts.append(Text(view.state.text, style=STYLES.get(view.state.kind, "red")))
    parts += [Text(text, style="red") for text in view.warnings]
    parts += [Text(), *_numbers(view), *_curves(view, blocks), *_layers(view, blocks), *_health(view)]
    parts.append(Text(str(view.root), style="dim"))
    return Group(*parts)


def _what(view: RunView) -> str:
    recipe = view.recipe
    return (
        f"{view.name}: {recipe.model.name} on {recipe.data.name}, neuron {recipe.neuron.name}, T = "
        f"{recipe.data.timesteps}, seed {recipe.train.seed}"
    )


def _numbers(view: RunView) -> list[RenderableType]:
    from rich.text import Text

    from steadyspike.disk.plain_text import duration

    lines: list[RenderableType] = []
    measure = view.measure
    if scores := view.test_scores():
        listed = "  ".join(measure.number(value) for value in scores)
        after = " after each time step" if len(scores) > 1 else ""
        lines.append(Text.assemble(f"test {measure.name}{after}  ", (listed, "bold"), f" {measure.unit}".rstrip()))
        lines += _parts(view)
        lines.append(Text(f"weights: {view.result.get('weights', '')}", style="dim"))
    done, whole = (view.epochs[-1] if view.epochs else 0), view.recipe.schedule.epochs
    took = view.result.get("seconds")
    time_said = "" if took is None else f"  in {duration(took)}"
    lines.append(f"epoch {done} of {whole}{time_said}")
    if view.kind.classifies and (classes := view.about.get("data", {}).get("classes")) is not None:
        lines.append(Text(f"a constant guess: {100 / max(classes, 1):.2f} %", style="dim"))
    paper = view.recipe.paper
    if paper is not None:
        published = f"{paper.value} {paper.unit}" if paper.value is not None else paper.verdict
        lines.append(f"the paper: {published} ({paper.where})")
    return lines


def _parts(view: RunView) -> list[RenderableType]:
    """Prints what the kind of the run shows of its result besides the score, such as mAP by class."""
    from steadyspike.train.recipe.kinds import imported

    test: dict[str, Any] = view.result.get("test", {})
    return list(imported(view.kind.glance)(test)) if view.kind.glance and test else []


def _curves(view: RunView, blocks: str) -> list[RenderableType]:
    from rich.text import Text

    from steadyspike.report.sparkline import sparkline

    if not view.epochs:
        return []
    table = bare_table("", "by epoch", "first", "last", "best", right=("first", "last", "best"))
    shown: list[tuple[str, list[float | None], Any]] = [("training loss", view.metrics.get("train_loss", []), min)]
    shown.append((f"{view.part or 'train'} {view.measure.title}", view.evaluated_curve(), max))
    for title, values, best in shown:
        there = [value for value in values if value is not None]
        if there:
            ends = (
                number(value, 4 if best is min else view.measure.digits) for value in (there[0], there[-1], best(there))
            )
            table.add_row(title, sparkline(values, _CURVE, marks=blocks), *ends)
    return [Text(), table]


def _layers(view: RunView, blocks: str) -> list[RenderableType]:
    from rich.text import Text

    from steadyspike.report.sparkline import sparkline

    layers = view.layers
    if not layers.epochs:
        return []
    columns = {
        "V": "threshold",
        "tau": "tau",
        "mean": "running_mean",
        "rate": "rate",
        "silent": "silent",
        "grad": "gradient",
    }
    table = bare_table("layer", *columns, "rate by step", right=tuple(columns), fold=("layer",))
    for index, name in enumerate(layers.names):
        values = (layers.values[quantity][-1][index] for quantity in columns.values())
        steps = layers.rates[-1][index]
        table.add_row(name, *(number(value, 3) for value in values), sparkline(steps, 12, 0.0, marks=blocks))
    return [Text(), Text(f"layers after epoch {layers.epochs[-1]}", style="bold"), table]


def _health(view: RunView) -> list[RenderableType]:
    from rich.text import Text

    if not view.health:
        return [Text(), Text("health: nothing was found", style="dim")]
    lines: list[RenderableType] = [
        Text(),
        Text(f"health: {len(view.health)} findings, the last ones:", style="bold red"),
    ]
    for row in view.health[-5:]:
        lines.append(f"epoch {row.get('epoch', '')}: {row.get('message', '')}")
    return lines

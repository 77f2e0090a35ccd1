"""The numbers of a report as plain values, which its script draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steadyspike.report.rounding import rounded
from steadyspike.report.run_columns import QUANTITIES, LayerHistory
from steadyspike.report.run_view import RunView
from steadyspike.train.recipe.kinds import imported

CELLS = 300_000  # the most numbers about layers in one page, over all runs; if there are more, epochs are left out
POINTS = 2000  # the most rows of steps.csv in one page, per run


def page_data(runs: Sequence[RunView]) -> dict[str, Any]:
    """Everything that the script needs, ready for JSON."""
    room = CELLS // max(1, len(runs))
    return {"runs": [_run(run, room) for run in runs]}


def _run(run: RunView, room: int) -> dict[str, Any]:
    metrics = run.metrics
    steps = [name for name in metrics if "_accuracy_" in name] if run.kind.classifies else []
    return {
        "label": run.label,
        "state": run.state.kind,
        "part": run.part,
        "measure": run.measure.name,
        "epochs": run.epochs,
        "loss": _lines(run, "train_loss", metrics.get(f"{run.part}_loss", [])),
        "score": _lines(run, f"train_{run.kind.key}", run.curve() if run.part else []),
        "lr": rounded(metrics.get("lr", [])),
        "byStep": [rounded(list(row)) for row in zip(*(metrics[name] for name in steps))],
        "test": rounded(run.test_scores()) if run.kind.classifies else [],
        "boxes": imported(run.kind.curves)(run) if run.kind.curves else {},
        "best": (run.result.get("best") or {}).get("epoch"),
        "steps": _steps(run),
        "layers": _layers(run.layers, room),
        "health": [
            {key: row.get(key, "") for key in ("epoch", "kind", "layer", "message")} for row in run.health[:500]
        ],
        "details": _details(run),
    }


def _lines(run: RunView, training: str, evaluated: list[float | None]) -> dict[str, Any]:
    """Returns part of the data -> its curve {x: epochs, y}; epochs that were not evaluated leave no gap in it."""
    lines = {"training": {"x": run.epochs, "y": rounded(run.metrics[training])}} if training in run.metrics else {}
    if run.part and evaluated:
        places = run.evaluated()
        lines[run.part] = {"x": [run.epochs[i] for i in places], "y": rounded([evaluated[i] for i in places])}
    return lines


def _steps(run: RunView) -> dict[str, Any]:
    count = len(run.steps.get("step", []))
    every = max(1, -(-count // POINTS))
    return {name: rounded(run.steps.get(name, [])[::every]) for name in ("step", "loss", "gradient")}


def thinned(history: LayerHistory, room: int) -> list[int]:
    """Returns the indices of the epochs that are kept, which are evenly spread and include the last one."""
    steps = max((len(rates) for epoch in history.rates for rates in epoch), default=0)
    each = max(1, len(history.names) * (len(QUANTITIES) + steps))
    count = len(history.epochs)
    keep = min(count, max(2, room // each))
    return sorted({round(i * (count - 1) / max(1, keep - 1)) for i in range(keep)}) if count else []


def _layers(history: LayerHistory, room: int) -> dict[str, Any]:
    places = thinned(history, room)
    return {
        "names": history.names,
        "epochs": [history.epochs[i] for i in places],
        "values": {quantity: rounded([history.values[quantity][i] for i in places]) for quantity in QUANTITIES},
        "rates": rounded([history.rates[i] for i in places]),
    }


def _details(run: RunView) -> dict[str, Any] | None:
    if run.details is None:
        return None
    names = ("classes", "recall", "confusion", "confused", "pictures", "membranes", "samples")
    return {name: rounded(run.details[name]) for name in names}

"""The numbers of a report as plain values, which its script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from steadyspike.report.run_columns import QUANTITIES, LayerHistory
from steadyspike.report.run_view import RunView

CELLS = 300_000  # numbers about layers in one page, over all runs; more epochs than that are thinned out
POINTS = 2000  # rows of steps.csv in one page, per run


def rounded(value: Any) -> Any:
    """Five digits of every number, in lists too; None for what is not finite."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def page_data(runs: Sequence[RunView]) -> dict[str, Any]:
    """Everything that the script needs, ready for JSON."""
    room = CELLS // max(1, len(runs))
    return {"runs": [_run(run, room) for run in runs]}


def _run(run: RunView, room: int) -> dict[str, Any]:
    metrics, part = run.metrics, run.part
    steps = [name for name in metrics if "_accuracy_" in name]
    return {
        "label": run.label,
        "state": run.state.kind,
        "part": part,
        "epochs": run.epochs,
        "loss": {"training": rounded(metrics.get("train_loss", [])), **_of_part(run, "_loss")},
        "accuracy": {
            "training": rounded(metrics.get("train_accuracy", [])),
            **({part: rounded(run.curve())} if part else {}),
        },
        "lr": rounded(metrics.get("lr", [])),
        "byStep": [rounded(list(row)) for row in zip(*(metrics[name] for name in steps))],
        "test": rounded(run.test_accuracy()),
        "best": (run.result.get("best") or {}).get("epoch"),
        "steps": _steps(run),
        "layers": _layers(run.layers, room),
        "health": [
            {key: row.get(key, "") for key in ("epoch", "kind", "layer", "message")} for row in run.health[:500]
        ],
        "details": _details(run),
    }


def _of_part(run: RunView, ending: str) -> dict[str, Any]:
    name = f"{run.part}{ending}"
    return {run.part: rounded(run.metrics[name])} if run.part and name in run.metrics else {}


def _steps(run: RunView) -> dict[str, Any]:
    count = len(run.steps.get("step", []))
    every = max(1, -(-count // POINTS))
    return {name: rounded(run.steps.get(name, [])[::every]) for name in ("step", "loss", "gradient")}


def thinned(history: LayerHistory, room: int) -> list[int]:
    """Places of the epochs that are kept, evenly spread and with the last one."""
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
    return {name: rounded(run.details[name]) if name in ("recall",) else run.details[name] for name in names} | {
        "membranes": {key: rounded(value) for key, value in run.details["membranes"].items()}
    }

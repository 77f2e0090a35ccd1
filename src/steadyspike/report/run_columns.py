"""Reads the CSV files of a run as columns of numbers, whether the run has ended or is still writing them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path

from steadyspike.train.files.folder import RunError
from steadyspike.train.files.tables import Extent, extent_problem

Number = float | None  # None: not measured, or not finite
Columns = dict[str, list[Number]]
QUANTITIES = ("threshold", "tau", "running_mean", "rate", "silent", "gradient")


@dataclass
class LayerHistory:
    """The state of every neuron layer after every epoch.

    names: layers in order; "head" is last if it has a gradient
    values: quantity -> [epoch][layer]
    rates: firing rate per time step, [epoch][layer][step], empty if a layer was not evaluated
    """

    names: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    values: dict[str, list[list[Number]]] = field(default_factory=lambda: {quantity: [] for quantity in QUANTITIES})
    rates: list[list[list[Number]]] = field(default_factory=list)


def read_rows(path: Path, extent: Extent | None = None) -> list[dict[str, str]]:
    """Returns the rows of a table; raises RunError if it was changed or cannot be read.

    extent: length and checksum that it must have. Without it, while the run is training, an incomplete last line is
    left out.
    """
    if extent is not None and (problem := extent_problem(path, extent)) is not None:
        raise RunError(f"{problem}; restore it from a copy")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    if extent is not None:
        content = content[: extent["length"]]
    try:
        text = content[: content.rfind(b"\n") + 1].decode()
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__} while reading it)") from None
    if any(None in row or None in row.values() for row in rows):
        raise RunError(f"{path} is damaged (a row has too few or too many cells)")
    return rows


def number(text: str, path: Path) -> Number:
    """Returns a cell; None if it is empty or not finite."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise RunError(f"{path} is damaged ({text[:40]!r} is not a number)") from None
    return value if math.isfinite(value) else None


def read_columns(path: Path, extent: Extent | None = None) -> Columns:
    """A table of numbers, column by column."""
    rows = read_rows(path, extent)
    return {name: [number(row[name], path) for row in rows] for name in (rows[0] if rows else {})}


def read_layers(path: Path, extent: Extent | None = None) -> LayerHistory:
    """layers.csv."""
    rows = read_rows(path, extent)
    if not rows:
        return LayerHistory()
    if missing := {"epoch", "layer"} - set(rows[0]):
        raise RunError(f"{path} is damaged (it has no column {sorted(missing)[0]})")
    history = LayerHistory(names=list(dict.fromkeys(row["layer"] for row in rows)))
    history.names.sort(key=lambda name: name == "head")  # a stable sort: the others stay in the order of the network
    column = {name: i for i, name in enumerate(history.names)}
    steps = [name for name in rows[0] if name.startswith("rate_")]
    for row in rows:
        epoch = int(number(row["epoch"], path) or 0)
        if not history.epochs or history.epochs[-1] != epoch:
            history.epochs.append(epoch)
            for quantity in QUANTITIES:
                history.values[quantity].append([None] * len(history.names))
            history.rates.append([[] for _ in history.names])
        at = column[row["layer"]]
        for quantity in QUANTITIES:
            history.values[quantity][-1][at] = number(row.get(quantity, ""), path)
        if steps and row[steps[0]]:
            history.rates[-1][at] = [number(row[name], path) for name in steps]
    return history

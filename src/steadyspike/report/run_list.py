"""Lists all runs below a folder quickly.

It reads one small file per run that has ended, and the end of a table for the others.
"""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.report.run_view import RUNNING, state_of
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe.kinds import ACCURACY, Measure, kind_of_columns, kind_of_result
from steadyspike.train.recipe.load import ORIGIN

DAMAGED = "damaged"
_DEPTH = 12
_EPOCHS = re.compile(r"^\[schedule\]$[^\[]*?^epochs = ([0-9]+)$", re.M)  # quicker than reading the whole recipe
_END = 8192  # the number of bytes of a table that are read


class RunLine(NamedTuple):
    """One run of the list; None for values that are not recorded.

    score: measured by ``measure``, on ``part``
    epoch: the last complete one, of ``epochs`` (for runs without a result)
    changed: when its result (or its last row) was written, in seconds since 1970
    seconds: the duration so far
    """

    path: Path
    recipe: str
    state: str
    score: float | None
    measure: Measure
    part: str
    epoch: int | None
    epochs: int | None
    changed: float
    seconds: float | None


def find_runs(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yields folders with a recipe.toml, without looking inside them; links to folders are not followed."""
    if (root / "recipe.toml").is_file():
        yield root
        return
    try:
        with os.scandir(root) as entries:
            below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except (PermissionError, FileNotFoundError):
        return
    if depth > 0:
        for name in below:
            yield from find_runs(root / name, depth - 1)


def list_runs(root: Path) -> list[RunLine]:
    """Returns every run below ``root``, the one that changed last at the end."""
    if not root.is_dir():
        raise RunError(f"{root} is not a folder: name the folder that holds your runs")
    return sorted((line(path) for path in find_runs(root)), key=lambda run: (run.changed, str(run.path)))


def line(root: Path) -> RunLine:
    """Reads one run; a damaged run is marked as damaged and does not hide the others."""
    folder = RunFolder(root)
    try:
        return _line(folder)
    except (RunError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return RunLine(root, _name(folder), DAMAGED, None, ACCURACY, "", None, None, _changed(root), None)


def _line(folder: RunFolder) -> RunLine:
    root = folder.root
    result: dict[str, Any] = folder.read_json("result.json") if (root / "result.json").exists() else {}
    state = state_of(folder, result)
    if state.ended:
        test, took = result.get("test", {}), result.get("seconds")
        kind = kind_of_result(test)
        best = next(iter(kind.test_scores(test)[-1:]), None)
        return RunLine(root, _name(folder), state.kind, best, kind.measure, "test", None, None, _changed(root), took)
    epochs_line = _EPOCHS.search((root / "recipe.toml").read_text())
    epoch, score, measure, part = _last_row(root / "metrics.csv")
    took = time.time() - (root / "run.json").stat().st_mtime if state.kind == RUNNING else None
    epochs = int(epochs_line[1]) if epochs_line is not None else None
    return RunLine(root, _name(folder), state.kind, score, measure, part, epoch, epochs, _changed(root), took)


def _name(folder: RunFolder) -> str:
    with suppress(RunError, OSError):
        if isinstance(recorded := folder.read_json(ORIGIN).get("name"), str):
            return recorded
    return folder.root.resolve().parent.name


def _changed(root: Path) -> float:
    times = [0.0]
    for name in ("result.json", "metrics.csv", "recipe.toml"):
        with suppress(OSError):
            times.append((root / name).stat().st_mtime)
    return max(times)


def _last_row(path: Path) -> tuple[int | None, float | None, Measure, str]:
    """Returns (epoch, score, measure, part): the last complete row of a table, and the last score in it."""
    try:
        with open(path, "rb") as file:
            head = file.readline(_END)
            file.seek(max(len(head), os.fstat(file.fileno()).st_size - _END))
            tail = file.read(_END)
    except FileNotFoundError:
        return None, None, ACCURACY, ""
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    if not lines:
        return 0, None, ACCURACY, ""
    names = next(csv.reader([head.decode()]))
    kind = kind_of_columns(names)
    own = kind.columns(names)
    name = ([one for one in own if not one.startswith("train_")][-1:] or own or [""])[0]
    # Only whole rows have as many cells as the head, because the first line of the tail may be cut off.
    rows = [
        dict(zip(names, cells)) for cells in csv.reader(line.decode() for line in lines) if len(cells) == len(names)
    ]
    score = next((float(row[name]) for row in reversed(rows) if row.get(name)), None)
    return int(rows[-1]["epoch"]), score, kind.measure, name.partition("_")[0]

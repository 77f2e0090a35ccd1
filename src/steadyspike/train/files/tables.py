"""Metrics as CSV files that only grow, and that can be cut back to an earlier length if their content is unchanged."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from steadyspike.train.files.atomic import CheckpointError, why_not_written

Cell = float | int | str | bool | None
Extent = dict[str, Any]  # {"length": bytes, "sha256": of these bytes}


class Table:
    """A CSV file with fixed columns.

    Numbers are written so that reading gives the same value; nothing depends on the clock.
    """

    def __init__(self, path: Path, columns: Sequence[str], extent: Extent | None = None) -> None:
        """extent: continue a file from this length and drop what follows; None: start the file again"""
        self.path, self.columns = path, list(columns)
        self._digest = hashlib.sha256()
        self._file: BinaryIO
        if extent is None:
            self._file = open(path, "wb")  # noqa: SIM115
            self._write(self.columns)
            return
        problem = extent_problem(path, extent)
        if problem is not None:
            raise CheckpointError(problem)
        self._file = open(path, "r+b")  # noqa: SIM115
        self._digest.update(self._file.read(extent["length"]))
        self._file.truncate(extent["length"])

    def _write(self, cells: Sequence[Cell]) -> None:
        line = (",".join(_text(c) for c in cells) + "\n").encode()
        with self._naming():
            self._file.write(line)
            self._file.flush()
        self._digest.update(line)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {why_not_written(self.path, error)}") from error

    def add(self, **row: Cell) -> None:
        """Writes one row; columns without a value stay empty."""
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"{self.path.name} has no column {sorted(unknown)[0]!r}")
        self._write([row.get(column) for column in self.columns])

    def sync(self) -> Extent:
        """Syncs everything to disk; returns the current length and checksum."""
        with self._naming():
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"length": self._file.tell(), "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        with self._naming():
            self._file.close()


def extent_problem(path: Path, extent: Extent) -> str | None:
    """Returns why a file does not begin with its earlier content; None if it does."""
    try:
        with open(path, "rb") as file:
            content = file.read(extent["length"])
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if len(content) < extent["length"]:
        return f"{path} has {len(content)} bytes, but it had {extent['length']} when this was written"
    if hashlib.sha256(content).hexdigest() != extent["sha256"]:
        return f"{path} was changed: it does not have the checksum it was written with"
    return None


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return repr(cell)
    text = str(cell)
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def read_table(path: Path) -> list[dict[str, str]]:
    """Returns the rows of such a file, as text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))

"""Metrics as CSV files that only grow, know their length, and can be cut back to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from steadyspike.train.files.atomic import CheckpointError, why_not_written

Cell = float | int | str | bool | None


class Table:
    """A CSV file with fixed columns. Numbers are written so that they read back equal; nothing depends on the clock."""

    def __init__(self, path: Path, columns: Sequence[str], length: int | None = None) -> None:
        """length: continue a file at this many bytes and drop what is behind; None: start it anew."""
        self.path, self.columns = path, list(columns)
        self._file: BinaryIO
        if length is None:
            self._file = open(path, "wb")  # noqa: SIM115
            self._write(self.columns)
            return
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise CheckpointError(f"{path} has {there} bytes, but the checkpoint was written when it had {length}")
        self._file = open(path, "r+b")  # noqa: SIM115
        self._file.truncate(length)
        self._file.seek(length)

    def _write(self, cells: Sequence[Cell]) -> None:
        with self._naming():
            self._file.write((",".join(_text(c) for c in cells) + "\n").encode())
            self._file.flush()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {why_not_written(self.path, error)}") from error

    def add(self, **row: Cell) -> None:
        """One row; a column that is not given stays empty."""
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"{self.path.name} has no column {sorted(unknown)[0]!r}")
        self._write([row.get(column) for column in self.columns])

    def sync(self) -> int:
        """Everything on disk; returns the length in bytes."""
        with self._naming():
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        with self._naming():
            self._file.close()


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return repr(cell)
    text = str(cell)
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of such a file, as text."""
    import csv

    with open(path, newline="") as file:
        return list(csv.DictReader(file))

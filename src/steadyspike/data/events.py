"""The events of one recording, as one array for each of x, y, t and p."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, disk_errors

# The longest published recording (DVS128-Gesture) has 60 MB; decoding needs about six times a file's size in memory.
MOST_BYTES = 1 << 29
# 73,000 years: beyond this, the difference of two times would not fit in 64 bits.
TIME_LIMIT = 1 << 61


@dataclass(frozen=True)
class Events:
    """The events of one recording.

    x, y: pixel column and row; t: microseconds; p: polarity (0 off, 1 on); all of length N, in stream order.

    `size` is the sensor's (height, width). Every event lies inside it; `checked` verifies this.
    """

    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    t: NDArray[np.int64]
    p: NDArray[np.uint8]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.x)

    def between(self, start: int, stop: int) -> Events:
        """Returns the events with start <= t < stop (microseconds)."""
        keep = (self.t >= start) & (self.t < stop)
        return Events(self.x[keep], self.y[keep], self.t[keep], self.p[keep], self.size)


def checked(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    size: tuple[int, int],
    path: str | Path,
    kept: NDArray[np.bool_] | None = None,
    has_header: bool = False,
) -> Events:
    """Builds events from raw arrays; raises DataError (naming `path`) if one lies outside the sensor.

    kept: which of the file's records the arrays hold, if some records are not events; error messages then count all
    records
    has_header: the file states its format, so that a file without events is valid (otherwise it is an error)
    """
    if len(x) == 0 and not has_header:
        raise DataError("holds no events", path)
    if len(x) == 0:
        t = np.empty(0, np.int64)
    elif int(t.max()) >= TIME_LIMIT or int(t.min()) < -TIME_LIMIT:
        i = int(np.argmax((t >= TIME_LIMIT) | (t < -TIME_LIMIT)))
        raise DataError(f"event {_number(i, kept)} has the time {int(t[i])} us, which no recording reaches", path)
    height, width = size
    if len(x) and (int(x.max()) >= width or int(y.max()) >= height):
        i = int(np.argmax((x >= width) | (y >= height)))
        where = f"(x={int(x[i])}, y={int(y[i])})"
        raise DataError(f"event {_number(i, kept)} has address {where}, outside the {width} x {height} sensor", path)
    return Events(
        x.astype(np.uint16, copy=False),
        y.astype(np.uint16, copy=False),
        t.astype(np.int64, copy=False),
        p.astype(np.uint8, copy=False),
        size,
    )


def _number(i: int, kept: NDArray[np.bool_] | None) -> int:
    """Returns the position of the i-th event among all records of the file."""
    return i if kept is None else int(np.flatnonzero(kept)[i])


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Reads the whole file; raises DataError if it is missing, unreadable, empty or larger than `most` bytes."""
    size = regular_size(path)
    if size > most:
        raise DataError(f"has {size} bytes; a file of its kind has at most {most}", path)
    with disk_errors(path, "cannot be read"), open(path, "rb") as stream:
        raw = stream.read(size)
    if not raw:
        raise DataError("is empty", path)
    return raw


def regular_size(path: str | Path) -> int:
    """Returns the size of a regular file.

    Raises DataError for a pipe or a device, because reading one may never end.
    """
    with disk_errors(path, "cannot be read"):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise DataError("is not a plain file", path)
    return info.st_size

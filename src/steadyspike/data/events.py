"""Events of one recording: structure of arrays, checked once when read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError


@dataclass(frozen=True)
class Events:
    """x, y: pixel column and row; t: microseconds; p: polarity (0 off, 1 on); all of length N, in stream order.

    `size` is the sensor's (height, width). Every event lies inside it: `checked` is the way in.
    """

    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    t: NDArray[np.int64]
    p: NDArray[np.uint8]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.x)

    def between(self, start: int, stop: int) -> Events:
        """The events with start <= t < stop (microseconds)."""
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
) -> Events:
    """Events from raw arrays; raises DataError (naming `path`) when there are none or one lies off the sensor.

    kept: which of the file's records the arrays hold, where some are no events: an error counts all records.
    """
    if len(x) == 0:
        raise DataError("holds no events.", path)
    height, width = size
    if int(x.max()) >= width or int(y.max()) >= height:
        i = int(np.argmax((x >= width) | (y >= height)))
        number = i if kept is None else int(np.flatnonzero(kept)[i])
        raise DataError(
            f"event {number} has address (x={int(x[i])}, y={int(y[i])}), outside the {width} x {height} sensor.", path
        )
    return Events(
        x.astype(np.uint16, copy=False),
        y.astype(np.uint16, copy=False),
        t.astype(np.int64, copy=False),
        p.astype(np.uint8, copy=False),
        size,
    )


def read_bytes(path: str | Path) -> bytes:
    """The whole file; a missing, unreadable or empty one is a DataError."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}).", path) from error
    if not raw:
        raise DataError("is empty.", path)
    return raw

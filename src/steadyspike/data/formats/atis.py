"""The 40-bit event format of N-MNIST and N-Caltech101 (ATIS camera), read and written.

An event has five bytes: x, y, then 24 bits, big-endian. The highest of these is the polarity, and the other 23 are the
time in microseconds. y == 240 marks a timer overflow: it is not a pixel, and all later times are 2^13 us later.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events, checked, read_bytes

OVERFLOW_Y = 240
OVERFLOW_US = 1 << 13
TIME_LIMIT = 1 << 23


def read(path: str | Path, size: tuple[int, int] = (34, 34)) -> Events:
    """Reads the events of one file. `size` is the sensor's (height, width)."""
    return decode(read_bytes(path), size, path)


def decode(raw: bytes, size: tuple[int, int], path: str | Path) -> Events:
    if len(raw) % 5:
        raise DataError(f"is truncated: {len(raw)} bytes are not a whole number of 5-byte events", path)
    # One strided copy per column. The 24-bit word is assembled in 32 bits, which halves the memory traffic compared
    # with int64.
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 5)
    x, y = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
    word = table[:, 2].astype(np.uint32)
    p = (word >> 7).astype(np.uint8)
    word &= 0x7F
    for column in (3, 4):
        word <<= 8
        word |= table[:, column]
    t = word.astype(np.int64)
    marks = y == OVERFLOW_Y
    if marks.any():
        t += np.cumsum(marks, dtype=np.int64) * OVERFLOW_US
        x, y, t, p = x[~marks], y[~marks], t[~marks], p[~marks]
    return checked(x, y, t, p, size, path, ~marks)


def encode(events: Events) -> bytes:
    """Encodes `events` as bytes. Times must lie in [0, 2^23) us; longer recordings would need overflow events."""
    if len(events) and (events.t.min() < 0 or events.t.max() >= TIME_LIMIT):
        raise ValueError(f"times must lie in [0, {TIME_LIMIT}) us for the 40-bit format")
    if events.size[0] > OVERFLOW_Y or events.size[1] > 256:
        raise ValueError(f"the 40-bit format holds at most {OVERFLOW_Y} rows and 256 columns, not {events.size}")
    word = (events.p.astype(np.uint32) << 23) | events.t.astype(np.uint32)
    table: NDArray[np.uint8] = np.empty((len(events), 5), dtype=np.uint8)
    table[:, 0], table[:, 1] = events.x, events.y
    table[:, 2], table[:, 3], table[:, 4] = word >> 16, (word >> 8) & 0xFF, word & 0xFF
    return table.tobytes()

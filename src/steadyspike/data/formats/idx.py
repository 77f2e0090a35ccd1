"""MNIST's idx files (plain or gzip): big-endian sizes, then unsigned bytes."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.decompress import budget, read_unpacked
from steadyspike.data.errors import DataError
from steadyspike.data.events import read_bytes


def read(path: str | Path) -> NDArray[np.uint8]:
    """Reads the array of one idx file of unsigned bytes, plain or gzipped."""
    raw = read_bytes(path)
    if raw[:2] != b"\x1f\x8b":
        return decode(raw, path)
    return decode(read_unpacked(path, budget(len(raw))), path)


def decode(raw: bytes, path: str | Path) -> NDArray[np.uint8]:
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != 8 or not 1 <= raw[3] <= 4:
        raise DataError(f"is not an idx file of unsigned bytes (it begins with {raw[:4]!r})", path)
    rank = raw[3]
    if len(raw) < 4 + 4 * rank:
        raise DataError("is truncated: it ends inside its header", path)
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    expected = 4 + 4 * rank + math.prod(shape)
    if len(raw) != expected:
        raise DataError(f"has {len(raw)} bytes, but its header {shape} asks for {expected}", path)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def encode(array: NDArray[np.uint8]) -> bytes:
    """Encodes an array of unsigned bytes as an idx file."""
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + np.ascontiguousarray(array).tobytes()

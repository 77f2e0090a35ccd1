r"""AEDAT 2.0 of the DVS128 camera, 128 x 128 pixels, as DVS-CIFAR10 (CIFAR10-DVS) was published.

A file has ASCII header lines that begin with '#' and end in CRLF, then pairs of big-endian uint32: address, time in us.
Bits of an address: 0 is the polarity, 1-7 are x, 8-14 are y. Bit 15 marks an external signal (no pixel); higher bits
are unused.

Orientation: p = 1 - p_raw, and the image is upright with one of two `AXES`:
"dvs-cifar10": x = 127 - y_raw, y = 127 - x_raw; the raw axes are transposed and mirrored (TEBN and TAB use this).
"camera": x = 127 - x_raw, y = 127 - y_raw; for a camera that was not rotated (jAER shows recordings in this way).
Another convention mirrors only x; a horizontal flip then acts on another physical axis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events, checked, read_bytes

SIZE = (128, 128)
MAGIC = b"#!AER-DAT2.0"
EXTERNAL = 1 << 15
AXES = ("dvs-cifar10", "camera")


def read(path: str | Path, axes: str = "dvs-cifar10") -> Events:
    """Reads the events of one .aedat file; they are upright if it was recorded with these `AXES`."""
    return decode(read_bytes(path), path, axes)


def header_length(raw: bytes, path: str | Path) -> int:
    """Returns the number of bytes of the '#' lines at the beginning of `raw`."""
    if not raw.startswith(MAGIC):
        raise DataError(f"is not an AEDAT 2.0 file: it begins with {raw[:14]!r}, not {MAGIC!r}", path)
    at = 0
    while raw[at : at + 1] == b"#":
        end = raw.find(b"\n", at)
        if end < 0:
            raise DataError("is truncated: it ends inside its header", path)
        at = end + 1
    return at


def decode(raw: bytes, path: str | Path, axes: str = "dvs-cifar10") -> Events:
    """Decodes the bytes of a file. ``path`` is used in error messages; ``axes`` is as in `read`."""
    if axes not in AXES:
        raise DataError(f"axes must be {' or '.join(AXES)}, not '{axes}'")
    start = header_length(raw, path)
    if (len(raw) - start) % 8:
        raise DataError(f"is truncated: {len(raw) - start} bytes are not a whole number of 8-byte events", path)
    pairs = np.frombuffer(raw, dtype=">u4", offset=start).reshape(-1, 2)
    address = pairs[:, 0].astype(np.uint32)
    t = unwrap(pairs[:, 1].astype(np.int64))
    if len(address) and int(address.max()) >= EXTERNAL:
        if int(address.max()) >= 2 * EXTERNAL:
            i = int(np.argmax(address >= 2 * EXTERNAL))
            raise DataError(f"event {i} has address {int(address[i]):#x}, outside the 128 x 128 sensor", path)
        keep = address < EXTERNAL
        address, t = address[keep], t[keep]
    across, down = 127 - ((address >> 1) & 0x7F), 127 - ((address >> 8) & 0x7F)
    x, y = (across, down) if axes == "camera" else (down, across)
    return checked(x, y, t, 1 - (address & 1), SIZE, path, has_header=True)


def unwrap(t: np.ndarray) -> np.ndarray:
    """Turns times of a 32-bit microsecond counter into growing times; the counter wraps after 71 minutes."""
    wraps = np.diff(t) < -(1 << 31)
    if wraps.any():
        t[1:] += np.cumsum(wraps, dtype=np.int64) << 32
    return t


def encode(events: Events) -> bytes:
    """The inverse of `decode` with the axes of DVS-CIFAR10, for tests and for making data in the published layout."""
    x_raw, y_raw = 127 - events.y.astype(np.uint32), 127 - events.x.astype(np.uint32)
    address = (1 - events.p.astype(np.uint32)) | (x_raw << 1) | (y_raw << 8)
    pairs = np.stack([address, events.t.astype(np.uint32)], axis=1).astype(">u4")
    return MAGIC + b"\r\n# This is a raw AE data file - do not edit\r\n" + pairs.tobytes()

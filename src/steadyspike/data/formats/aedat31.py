r"""AEDAT 3.1 as DVS128-Gesture was published: 128 x 128 pixels, little-endian, packets of events.

Header: lines that begin with '#', the last one '#!END-HEADER'. Packet header (28 bytes): int16 type and source; int32
event size, time offset, time overflow, capacity, number of events, number of valid events. Type 1 holds polarity events
of 8 bytes: a word (bit 0 valid, bit 1 polarity, bits 2-16 y, bits 17-31 x) and the low 31 bits of the time in us.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events, checked, read_bytes

SIZE = (128, 128)
MAGIC = b"#!AER-DAT3.1"
END = b"#!END-HEADER\r\n"
PACKET = struct.Struct("<hhiiiiii")
POLARITY = 1


def read(path: str | Path) -> Events:
    """Reads the polarity events of one .aedat file of DVS128-Gesture."""
    return decode(read_bytes(path), path)


def decode(raw: bytes, path: str | Path) -> Events:
    if not raw.startswith(MAGIC):
        raise DataError(f"is not an AEDAT 3.1 file: it begins with {raw[:14]!r}, not {MAGIC!r}", path)
    at = raw.find(END)
    if at < 0:
        raise DataError("is truncated: its header has no end mark", path)
    at += len(END)
    words, times = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
    while at < len(raw):
        if len(raw) - at < PACKET.size:
            raise DataError("is truncated: it ends inside a packet header", path)
        kind, _, size, _, overflow, _, number, _ = PACKET.unpack_from(raw, at)
        at += PACKET.size
        if size <= 0 or number < 0 or overflow < 0 or number * size > len(raw) - at:
            raise DataError(f"is damaged or truncated: a packet claims {number} events of {size} bytes", path)
        if kind == POLARITY:
            if size != 8:
                raise DataError(f"is damaged: polarity events of {size} bytes instead of 8", path)
            pairs = np.frombuffer(raw, dtype="<u4", count=2 * number, offset=at).reshape(-1, 2)
            words.append(pairs[:, 0])
            times.append((pairs[:, 1] & 0x7FFFFFFF).astype(np.int64) + (overflow << 31))
        at += number * size
    word, t = np.concatenate(words), np.concatenate(times)
    if not (valid := (word & 1).astype(bool)).all():
        word, t = word[valid], t[valid]
    x, y, p = (word >> 17) & 0x7FFF, (word >> 2) & 0x7FFF, (word >> 1) & 1
    return checked(x, y, t, p, SIZE, path, valid, has_header=True)


def encode(events: Events, packet: int = 4096) -> bytes:
    """Encodes events in this layout, for tests."""
    out = [MAGIC + b"\r\n#Format: RAW\r\n" + END]
    word = (
        1 | (events.p.astype(np.uint32) << 1) | (events.y.astype(np.uint32) << 2) | (events.x.astype(np.uint32) << 17)
    )
    overflow = events.t >> 31
    edges = np.unique(
        np.concatenate([np.arange(0, len(events), packet), 1 + np.flatnonzero(np.diff(overflow)), [len(events)]])
    )
    for start, stop in zip(edges[:-1].astype(int), edges[1:].astype(int)):
        number = stop - start
        low = (events.t[start:stop] & 0x7FFFFFFF).astype(np.uint32)
        out.append(PACKET.pack(POLARITY, 0, 8, 4, int(overflow[start]), number, number, number))
        out.append(np.stack([word[start:stop], low], axis=1).astype("<u4").tobytes())
    return b"".join(out)

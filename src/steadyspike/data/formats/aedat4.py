""".aedat4 files (DV format), through the optional package `aedat`, with the checks that package leaves out.

`aedat` reads the file's header without verifying it, so a damaged one could make it read outside its buffer. The header
(a small flatbuffer) and the packet lengths are therefore checked here first; the packets themselves are verified by it.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from steadyspike.data.errors import DataError, needs
from steadyspike.data.events import Events, checked, read_bytes

MAGIC = b"#!AER-DAT4.0\r\n"


def read(path: str | Path) -> Events:
    """All polarity events of the file's (single) event stream."""
    try:
        import aedat
    except ImportError as error:
        raise needs("aedat", "aedat4", "reading .aedat4 files") from error
    check_structure(read_bytes(path), path)
    parts: list[np.ndarray] = []
    try:
        decoder = aedat.Decoder(str(path))
        streams = {key: s for key, s in decoder.id_to_stream().items() if s["type"] == "events"}
        if len(streams) == 1:
            parts = [packet["events"] for packet in decoder if "events" in packet]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic arrives as an exception that is not an `Exception`
        raise DataError(f"is not a valid .aedat4 file ({error}).", path) from error
    if len(streams) != 1:
        raise DataError(f"has {len(streams)} event streams; exactly one is expected.", path)
    ((_, stream),) = streams.items()
    size = (int(stream["height"]), int(stream["width"]))
    if not parts:
        raise DataError("holds no events.", path)
    e = np.concatenate(parts)
    return checked(e["x"], e["y"], e["t"], e["on" if "on" in (e.dtype.names or ()) else "p"], size, path)


def check_structure(raw: bytes, path: str | Path) -> None:
    """Raise DataError unless magic, header flatbuffer and packet lengths all lie inside the file."""
    if not raw.startswith(MAGIC):
        raise DataError(f"is not an .aedat4 file: it begins with {raw[:14]!r}.", path)
    at = len(MAGIC)
    try:
        (length,) = struct.unpack_from("<I", raw, at)
        at += 4
        header = raw[at : at + length]
        if len(header) < length:
            raise ValueError("it ends inside its header")
        data_end = _check_header(header)
        at += length
        end = data_end if at <= data_end <= len(raw) else len(raw)
        while at < end:
            _, length = struct.unpack_from("<II", raw, at)
            at += 8 + length
            if at > len(raw):
                raise ValueError("it ends inside a packet")
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(f"is damaged or truncated ({error}).", path) from error


def _check_header(buffer: bytes) -> int:
    """Verify the IOHeader flatbuffer {compression, data table position, description}; return the table's position."""

    def integer(fmt: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(fmt) > len(buffer):
            raise ValueError("its header points outside itself")
        return int(struct.unpack_from(fmt, buffer, at)[0])

    table = integer("<I", 0)
    vtable = table - integer("<i", table)
    vtable_size = integer("<H", vtable)
    integer("<B", vtable + vtable_size - 1)

    def field(index: int) -> int:
        slot = 4 + 2 * index
        offset = integer("<H", vtable + slot) if slot + 2 <= vtable_size else 0
        return table + offset if offset else 0

    if compression := field(0):
        integer("<i", compression)
    position = integer("<q", field(1)) if field(1) else -1
    if description := field(2):
        text = description + integer("<I", description)
        count = integer("<I", text)
        if text + 4 + count > len(buffer):
            raise ValueError("its header's description ends outside it")
        buffer[text + 4 : text + 4 + count].decode("utf-8")
    return position

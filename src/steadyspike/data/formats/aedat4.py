""".aedat4 files (DV format), read with the optional package `aedat` after additional checks.

`aedat` reads the file's header without verifying it, so a damaged header could make it read outside its buffer. It also
unpacks compressed packets of any size. Therefore the header (a small flatbuffer), the packet lengths and the unpacked
sizes of packets are checked here first. `aedat` verifies the packets themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from steadyspike.data.decompress import budget
from steadyspike.data.errors import DataError, brief, needs
from steadyspike.data.events import Events, checked, read_bytes
from steadyspike.data.formats.packed_size import Block, lz4_blocks, zstd_blocks

MAGIC = b"#!AER-DAT4.0\r\n"
# Its length, an offset, and the four letters that name its kind.
SHORTEST_PACKET = 12
BLOCKS: dict[int, Callable[[bytes], Iterator[Block]]] = {1: lz4_blocks, 2: lz4_blocks, 3: zstd_blocks, 4: zstd_blocks}


def read(path: str | Path) -> Events:
    """Reads all polarity events of the file's (single) event stream."""
    try:
        import aedat
    except ImportError as error:
        raise needs("aedat", "aedat4", "reading .aedat4 files") from error
    raw = read_bytes(path)
    check_structure(raw, path)
    most = budget(len(raw))
    del raw
    parts: list[np.ndarray] = []
    try:
        decoder = aedat.Decoder(str(path))
        streams = {key: s for key, s in decoder.id_to_stream().items() if s["type"] == "events"}
        if len(streams) == 1:
            for packet in decoder:
                if "events" in packet:
                    parts.append(packet["events"])
                    most -= parts[-1].nbytes
                    if most < 0:
                        raise DataError("unpacks to more events than its size accounts for", path)
    except (KeyboardInterrupt, SystemExit, MemoryError, DataError):
        raise
    except BaseException as error:  # an error in Rust arrives as an exception that is not an `Exception`
        raise DataError(f"is not a valid .aedat4 file ({brief(error)})", path) from error
    if len(streams) != 1:
        raise DataError(f"has {len(streams)} event streams; exactly one is expected", path)
    ((_, stream),) = streams.items()
    size = (int(stream["height"]), int(stream["width"]))
    if not parts:
        nothing = np.empty(0, np.int64)
        return checked(nothing, nothing, nothing, nothing, size, path, has_header=True)
    e = np.concatenate(parts)
    polarity = e["on" if "on" in (e.dtype.names or ()) else "p"]
    return checked(e["x"], e["y"], e["t"], polarity, size, path, has_header=True)


def check_structure(raw: bytes, path: str | Path) -> None:
    """Raises DataError unless header and packets lie inside the file and their unpacked size is plausible."""
    if not raw.startswith(MAGIC):
        raise DataError(f"is not an .aedat4 file: it begins with {raw[:14]!r}", path)
    at, total = len(MAGIC), 0
    try:
        (length,) = struct.unpack_from("<I", raw, at)
        at += 4
        header = raw[at : at + length]
        if len(header) < length:
            raise ValueError("it ends inside its header")
        data_end, compression = _check_header(header)
        if compression and compression not in BLOCKS:
            raise ValueError(f"compression {compression} is unknown")
        at += length
        end = data_end if at <= data_end <= len(raw) else len(raw)
        while at < end:
            _, length = struct.unpack_from("<II", raw, at)
            at += 8 + length
            if at > len(raw):
                raise ValueError("it ends inside a packet")
            if length < SHORTEST_PACKET and not compression:  # `aedat` would print its own traceback first
                raise ValueError(f"a packet has {length} bytes")
            if compression:
                total += _unpacked(BLOCKS[compression], raw[at - length : at])
                if total > budget(len(raw)):
                    raise DataError(
                        f"unpacks to more than {budget(len(raw))} bytes, more than its size accounts for", path
                    )
    except DataError:
        raise
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(f"is damaged or truncated ({error})", path) from error


def _unpacked(blocks: Callable[[bytes], Iterator[Block]], packet: bytes) -> int:
    """Estimates the unpacked size of a packet; raises ValueError if it could be larger than any valid packet.

    For a small compressed block the bound is far above its real size (128 KiB for zstd). The estimate for a whole file
    is therefore eight times its bytes plus a little, which is typical of events.
    """
    most = estimate = 0
    for block in blocks(packet):
        most += block.most
        estimate += block.most if block.exact else min(block.most, 8 * block.packed + 4096)
        if most > budget(len(packet)):
            raise ValueError(f"a packet of {len(packet)} bytes unpacks to more than {budget(len(packet))}")
    if most < SHORTEST_PACKET:  # this is a bound over all blocks, so the packet certainly holds less
        raise ValueError(f"a packet unpacks to {most} bytes")
    return estimate


def _check_header(buffer: bytes) -> tuple[int, int]:
    """Verifies the IOHeader flatbuffer {compression, data table position, description}.

    Returns position and compression.
    """

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

    compression = integer("<i", field(0)) if field(0) else 0
    position = integer("<q", field(1)) if field(1) else -1
    if description := field(2):
        text = description + integer("<I", description)
        count = integer("<I", text)
        if text + 4 + count > len(buffer):
            raise ValueError("its header's description ends outside it")
        buffer[text + 4 : text + 4 + count].decode("utf-8")
    return position, compression

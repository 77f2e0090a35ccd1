"""The unpacked size of zstd and LZ4 frames, read from the headers of their blocks without unpacking anything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

ZSTD_BLOCK = 1 << 17
_ZSTD, _LZ4 = 0xFD2FB528, 0x184D2204
_SKIPPABLE = 0x184D2A50
_LZ4_GROWTH = 255  # no LZ4 block unpacks to more than this many times its size


class Block(NamedTuple):
    """A block of `packed` bytes that unpacks to at most `most`.

    `exact` if that is its real size and not only a bound.
    """

    packed: int
    most: int
    exact: bool


def zstd_blocks(raw: bytes) -> Iterator[Block]:
    """Returns all blocks of the zstd frames in `raw`; raises ValueError if they are damaged."""
    return _frames(raw, _ZSTD, _zstd_frame)


def lz4_blocks(raw: bytes) -> Iterator[Block]:
    """Returns all blocks of the LZ4 frames in `raw`; raises ValueError if they are damaged."""
    return _frames(raw, _LZ4, _lz4_frame)


def _frames(raw: bytes, magic: int, frame: Callable[[bytes, int], Iterator[tuple[int, Block]]]) -> Iterator[Block]:
    at = 0
    while at < len(raw):
        number = _integer(raw, at, 4)
        at += 4
        if number & ~0xF == _SKIPPABLE:
            at += 4 + _integer(raw, at, 4)
            continue
        if number != magic:
            raise ValueError("a packet holds no compressed frame")
        for after, block in frame(raw, at):
            at = after
            if at > len(raw):  # the checksum of the frame is missing
                raise ValueError("a compressed packet ends too early")
            yield block


def _integer(raw: bytes, at: int, size: int) -> int:
    if at + size > len(raw):
        raise ValueError("a compressed packet ends too early")
    return int.from_bytes(raw[at : at + size], "little")


def _zstd_frame(raw: bytes, at: int) -> Iterator[tuple[int, Block]]:
    """Yields (position after the block, block) for every block of a frame whose header begins at `at`."""
    descriptor = _integer(raw, at, 1)
    single = bool(descriptor & 0x20)
    content_size = (int(single), 2, 4, 8)[descriptor >> 6]
    at += 1 + (not single) + (0, 1, 2, 4)[descriptor & 3] + content_size
    last = False
    while not last:
        header = _integer(raw, at, 3)
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3:
            raise ValueError("a compressed packet has a block of an unknown kind")
        at += 3 + (1 if kind == 1 else size)
        block = Block(size, ZSTD_BLOCK, False) if kind == 2 else Block(1 if kind == 1 else size, size, True)
        if at > len(raw):
            raise ValueError("a compressed packet ends too early")
        yield at + (4 if last and descriptor & 4 else 0), block


def _lz4_frame(raw: bytes, at: int) -> Iterator[tuple[int, Block]]:
    flags, sizes = struct.unpack("<BB", _integer(raw, at, 2).to_bytes(2, "little"))
    largest = 1 << (8 + 2 * (sizes >> 4 & 7))
    at += 2 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0) + 1
    while header := _integer(raw, at, 4):
        size = header & 0x7FFFFFFF
        at += 4 + size + (4 if flags & 0x10 else 0)
        if at > len(raw):
            raise ValueError("a compressed packet ends too early")
        yield at, Block(size, size if header >> 31 else min(_LZ4_GROWTH * size, largest), bool(header >> 31))
    at += 4 + (4 if flags & 4 else 0)
    yield at, Block(0, 0, True)

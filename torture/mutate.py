"""Damages bytes in the ways that files get damaged, and in those that an attacker tries.

The functions are pure: the same generator gives the same file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

# Values at the edges of what length and size fields hold.
EDGES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def _at(data: bytearray, random: random.Random) -> int:
    """A place in the data: half of the time in its first 64 bytes, where headers are."""
    return random.randrange(min(len(data), 64) if random.random() < 0.5 else len(data))


def flip(data: bytearray, random: random.Random) -> bytearray:
    data[_at(data, random)] ^= 1 << random.randrange(8)
    return data


def overwrite(data: bytearray, random: random.Random) -> bytearray:
    for _ in range(random.randint(1, 8)):
        data[_at(data, random)] = random.randrange(256)
    return data


def number(data: bytearray, random: random.Random) -> bytearray:
    """An integer of an edge value in place of some bytes, in either byte order."""
    size, at = random.choice((1, 2, 4, 8)), _at(data, random)
    value = random.choice(EDGES) & ((1 << 8 * size) - 1)
    data[at : at + size] = value.to_bytes(size, random.choice(("little", "big")))
    return data


def truncate(data: bytearray, random: random.Random) -> bytearray:
    return data[: random.randrange(len(data))]


def insert(data: bytearray, random: random.Random) -> bytearray:
    at = _at(data, random)
    data[at:at] = random.randbytes(random.randint(1, 32))
    return data


def remove(data: bytearray, random: random.Random) -> bytearray:
    at = _at(data, random)
    del data[at : at + random.randint(1, 32)]
    return data


def repeat(data: bytearray, random: random.Random) -> bytearray:
    """A piece of the data many times over."""
    at, size = _at(data, random), random.randint(1, 64)
    data[at:at] = data[at : at + size] * random.randint(1, 200)
    return data


def noise(data: bytearray, random: random.Random) -> bytearray:
    """A good beginning, then random bytes."""
    return data[: random.randint(0, min(64, len(data)))] + random.randbytes(random.randint(0, 400))


WAYS: Sequence[Callable[[bytearray, random.Random], bytearray]] = (
    flip, overwrite, number, truncate, insert, remove, repeat, noise,
)  # fmt: skip


def mutated(raw: bytes, random: random.Random) -> bytes:
    """`raw` damaged in one to three ways."""
    data = bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if data:
            data = random.choice(WAYS)(data, random)
    return bytes(data)

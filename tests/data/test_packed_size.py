"""Compressed .aedat4 packets, made by zstd and LZ4 themselves: honest ones are read, and no bound is too small."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from torture import hostile

from steadyspike.data.errors import DataError
from steadyspike.data.formats import aedat4
from steadyspike.data.formats.packed_size import lz4_blocks, zstd_blocks

from .samples import assert_same_events, recording

# name: (number of the compression in the file's header, packer)
PACKERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zstd": (3, lambda raw: zstandard.ZstdCompressor(1).compress(raw)),
    "zstd-high": (4, lambda raw: zstandard.ZstdCompressor(19).compress(raw)),
    "zstd-checksum": (3, lambda raw: zstandard.ZstdCompressor(3, write_checksum=True).compress(raw)),
    "zstd-no-size": (3, lambda raw: zstandard.ZstdCompressor(3, write_content_size=False).compress(raw)),
    "lz4": (1, lz4.frame.compress),
    "lz4-high": (2, lambda raw: lz4.frame.compress(raw, compression_level=3)),
    "lz4-blocks": (1, lambda raw: lz4.frame.compress(raw, block_size=4, block_linked=False, block_checksum=True)),
    "lz4-checksum": (1, lambda raw: lz4.frame.compress(raw, content_checksum=True, store_size=False)),
}


def blocks_of(name: str) -> Callable[[bytes], object]:
    return zstd_blocks if name.startswith("zstd") else lz4_blocks


@pytest.mark.parametrize("events", [1, 40, 9000])  # 9000: more than one block of 64 or 128 KiB
@pytest.mark.parametrize("name", PACKERS)
def test_packed_recordings_are_read(tmp_path: Path, name: str, events: int) -> None:
    number, pack = PACKERS[name]
    path = tmp_path / "a.aedat4"
    path.write_bytes(hostile.aedat4_packed([pack(hostile.aedat4_packet(events))], number, events))
    assert_same_events(aedat4.read(path), recording(events))


@pytest.mark.parametrize("name", PACKERS)
def test_the_bound_is_never_below_what_a_packet_unpacks_to(name: str) -> None:
    chance = random.Random(0)
    _, pack = PACKERS[name]
    for size in (0, 1, 100, 70_000, 300_000):
        words = [chance.randbytes(20) for _ in range(9)]
        for raw in (bytes(size), chance.randbytes(size), b"".join(chance.choices(words, k=1 + size // 20))[:size]):
            blocks = list(blocks_of(name)(pack(raw)))  # type: ignore[call-overload]
            assert sum(block.most for block in blocks) >= len(raw)
            assert all(block.most == block.packed for block in blocks if block.exact and block.packed > 1)


@pytest.mark.parametrize("name", PACKERS)
def test_a_packed_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    """64 MiB of zeros; the packet's own checksum and sizes are right."""
    number, pack = PACKERS[name]
    packed = pack(bytes(64 << 20))
    path = tmp_path / "a.aedat4"
    path.write_bytes(hostile.aedat4_packed([packed] * 4, number))
    with pytest.raises(DataError, match=r"a\.aedat4: .*unpacks to more than"):
        aedat4.read(path)


@pytest.mark.parametrize("name", PACKERS)
def test_a_truncated_packet_is_one_line(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    number, pack = PACKERS[name]
    packed = pack(hostile.aedat4_packet(40))
    path = tmp_path / "a.aedat4"
    for length in range(0, len(packed), 7):
        path.write_bytes(hostile.aedat4_packed([packed[:length]], number))
        with pytest.raises(DataError, match=r"a\.aedat4: ") as caught:
            aedat4.read(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(hostile.aedat4_packed([pack(b"short")], number))
    with pytest.raises(DataError, match=r"a\.aedat4: "):
        aedat4.read(path)
    assert capfd.readouterr().err == "", "the package's own report of an error"

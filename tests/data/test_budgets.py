"""Every reader refuses a small file that asks for much memory or time, before it has spent it, in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torture import archives, hostile
from torture.limits import MIB, Outcome, limited

from steadyspike.data import decompress
from steadyspike.data.formats import aedat4, atis, idx
from steadyspike.data.images import open_rgb, resize_and_centre, squeeze, to_tensor

from .samples import assert_same_events, recording


def evaluate(path: Path) -> object:
    return resize_and_centre(open_rgb(path), 256, 224)


CASES = {case.name: case for case in (*archives.escapes(), *archives.bombs(), *archives.pickles(), *archives.others())}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_cheaply_in_one_line(tmp_path: Path, name: str) -> None:
    assert archives.problem(CASES[name], tmp_path) is None


def _read(path: Path, read: Callable[[Path], object]) -> Outcome:
    return limited(lambda: read(path), 1500 * MIB, 60)


@pytest.mark.parametrize("size", [(20_000, 1), (1, 20_000)])
def test_a_strip_of_pixels_is_cropped_without_resizing_all_of_it(tmp_path: Path, size: tuple[int, int]) -> None:
    path = hostile.png(tmp_path / "strip.png", *size, 8)
    for read in (evaluate, lambda p: squeeze(open_rgb(p), 224)):
        outcome = _read(path, read)
        assert outcome.kind == "returned" and outcome.grown < 160 * MIB, outcome


@pytest.mark.parametrize("size", [(3000, 11), (11, 3000)])
def test_the_crop_of_a_long_image_is_that_of_the_whole_resized_image(monkeypatch: Any, size: tuple[int, int]) -> None:
    random = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
    image = Image.fromarray(random)
    whole = resize_and_centre(image, 64, 56), squeeze(image, 56)
    monkeypatch.setattr("steadyspike.data.images.MOST_RESIZED", 1)
    for expected, actual in zip(whole, (resize_and_centre(image, 64, 56), squeeze(image, 56))):
        assert (expected.int() - actual.int()).abs().max() <= 2


def test_sixteen_bits_in_strips_are_what_they_are_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (37, 23)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    monkeypatch.setattr("steadyspike.data.images.STRIP", 50)
    expected = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    assert torch.equal(to_tensor(open_rgb(tmp_path / "a.png"))[0], torch.from_numpy(expected))


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (atis.read, idx.read, open_rgb, aedat4.read, archives.read_pickle):
        outcome = _read(tmp_path / "pipe", read)
        assert outcome.kind == "refused" and outcome.text.endswith("pipe: is not a plain file"), outcome


def test_a_packet_that_is_too_short_is_found_before_the_decoder_panics(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "a.aedat4"
    path.write_bytes(hostile.aedat4_packed([b"12345"], 0))
    with pytest.raises(ValueError, match="a packet has 5 bytes"):
        aedat4.read(path)
    assert capfd.readouterr().err == ""


def test_honest_compressed_recordings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.aedat4"
    path.write_bytes(hostile.aedat4_packed([hostile.zstd_plain(hostile.aedat4_packet(40))], 3))
    assert_same_events(aedat4.read(path), recording(40))


def test_streams_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    import bz2
    import gzip
    import lzma

    for pack in (gzip.compress, bz2.compress, lzma.compress):
        path = tmp_path / "a"
        path.write_bytes(pack(b"one ") + pack(b"") + pack(bytes(100_000)) + bytes(20))
        assert decompress.read_unpacked(path, 1 << 20) == b"one " + bytes(100_000)
        with pytest.raises(ValueError, match="unpacks to more than 50000 bytes"):
            decompress.read_unpacked(path, 50_000)
        path.write_bytes(pack(b"one")[:-3])
        with pytest.raises(ValueError, match="is damaged or truncated"):
            decompress.read_unpacked(path, 1 << 20)
    path.write_bytes(gzip.compress(b"") * 5000)
    with pytest.raises(ValueError, match="more than 4096 compressed streams"):
        decompress.read_unpacked(path, 1 << 20)

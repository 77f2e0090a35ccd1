"""Damaged input: every reader raises DataError (naming the file) or returns valid data, nothing else."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from steadyspike.data import archive
from steadyspike.data.errors import DataError
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat4, aedat31, atis, cifar_batch, idx

from .samples import aedat4_bytes, cifar_pixels, recording

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that truncates, flips bytes, inserts or repeats."""
    kind = draw(st.sampled_from(["truncate", "flip", "insert", "both"]))
    where = draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6))

    def apply(raw: bytes) -> bytes:
        data = bytearray(raw)
        if kind in ("flip", "both"):
            for at, value in where:
                data[min(int(at * len(data)), len(data) - 1)] = value
        if kind == "insert":
            at = int(where[0][0] * len(data))
            data[at:at] = bytes(value for _, value in where)
        if kind in ("truncate", "both"):
            data = data[: int(where[0][0] * len(data))]
        return bytes(data)

    return apply


def attempt(action: Callable[[], Any], path: Path) -> Any:
    """The result, or None after a DataError that names the file; anything else raised fails the test."""
    try:
        return action()
    except DataError as error:
        message = str(error)
    assert str(path) in message
    return None


def check_events(read: Callable[[Path], Events], path: Path) -> None:
    events = attempt(lambda: read(path), path)
    if events is None:
        return
    assert len(events) > 0 or read is not atis.read  # only a file with a header may hold no events
    assert (events.x < events.size[1]).all() and (events.y < events.size[0]).all()
    assert set(np.unique(events.p)) <= {0, 1}
    assert len(events.x) == len(events.y) == len(events.t) == len(events.p)


EVENTS = {
    "atis": (atis.read, atis.encode(recording(40, (34, 34)))),
    "aedat2": (aedat2.read, aedat2.encode(recording(40))),
    "aedat31": (aedat31.read, aedat31.encode(recording(40), packet=16)),
    "aedat4": (aedat4.read, aedat4_bytes(recording(40))),
}


@pytest.mark.parametrize("name", EVENTS)
@FUZZ
@given(change=damage())
def test_damaged_event_files(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    read, raw = EVENTS[name]
    path = tmp_path / "damaged.events"
    path.write_bytes(change(raw))
    check_events(read, path)


@pytest.mark.parametrize("name", EVENTS)
@FUZZ
@given(raw=st.binary(max_size=400))
def test_random_bytes_as_event_files(tmp_path: Path, name: str, raw: bytes) -> None:
    read, good = EVENTS[name]
    path = tmp_path / "random.events"
    path.write_bytes(raw)
    check_events(read, path)
    path.write_bytes(good[:60] + raw)
    check_events(read, path)


def test_every_single_byte_of_an_aedat4_header(tmp_path: Path) -> None:
    """The package reads the header unchecked and aborts the process on a damaged one: ours must not let it."""
    raw = bytearray(aedat4_bytes(recording(3)))
    path = tmp_path / "header.aedat4"
    for at in range(14, 60):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[at] = value
            path.write_bytes(changed)
            check_events(aedat4.read, path)


def tar_bytes(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for number in range(3):
            info = tarfile.TarInfo(f"folder/file{number}.bin")
            content = bytes(range(256)) * 5
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number in range(3):
            bundle.writestr(f"folder/file{number}.bin", bytes(range(256)) * 5)
    return buffer.getvalue()


ARCHIVES = {"tar": tar_bytes("w"), "gz": tar_bytes("w:gz"), "xz": tar_bytes("w:xz"), "zip": zip_bytes()}


@pytest.mark.parametrize("name", ARCHIVES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=damage(), number=st.integers(0, 1 << 30))
def test_damaged_archives(tmp_path: Path, name: str, change: Callable[[bytes], bytes], number: int) -> None:
    """An error that names the archive and leaves nothing behind, or files inside the target; never anything outside."""
    root = tmp_path / "out"
    path = tmp_path / f"damaged.{name}"
    path.write_bytes(change(ARCHIVES[name]))
    target = root / str(number)
    before = set(tmp_path.iterdir())
    if attempt(lambda: archive.extract(path, target, limit=1 << 20), path) is None:
        assert not target.exists()
    else:
        assert any(target.rglob("*"))
    assert not list(root.glob("*.partial-*"))
    assert set(tmp_path.iterdir()) - before <= {root}


@FUZZ
@given(change=damage())
def test_damaged_cifar_pickles(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    pixels, labels = cifar_pixels(4)
    path = tmp_path / "data_batch_1"
    path.write_bytes(change(pickle.dumps({"labels": labels, "data": pixels, "filenames": ["a"] * 4}, protocol=2)))
    actual = attempt(lambda: cifar_batch.read_pickle(path, "labels", 10, 4), path)
    if actual is not None:
        images, classes = actual
        assert images.shape == (4, 3, 32, 32) and images.dtype == np.uint8
        assert classes.min() >= 0 and classes.max() < 10


@FUZZ
@given(raw=st.binary(max_size=200))
@example(raw=b"\x80\x02}q\x00(U\x04datar\xff\xff\xff\x7f.")
def test_random_bytes_as_a_pickle(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\x02" + raw)
    with pytest.raises(DataError, match="data_batch_1"):
        cifar_batch.read_pickle(path, "labels", 10, 4)


@FUZZ
@given(change=damage(), packed=st.booleans())
def test_damaged_idx_files(tmp_path: Path, change: Callable[[bytes], bytes], packed: bool) -> None:
    raw = idx.encode(np.arange(60, dtype=np.uint8).reshape(5, 4, 3))
    path = tmp_path / "images"
    path.write_bytes(change(gzip.compress(raw) if packed else raw))
    array = attempt(lambda: idx.read(path), path)
    assert array is None or array.dtype == np.uint8

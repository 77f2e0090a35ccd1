"""The clip cache: whole or not at all, with two processes, a killed one, damaged files and full keys."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import steadyspike.data as data
from steadyspike.data import cache
from steadyspike.data import data_folders as folders_module
from steadyspike.data.cache import build_once, key_of, writable_dir
from steadyspike.data.clip_cache import cached_clips
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.errors import DataError
from steadyspike.data.frames import FrameSettings
from steadyspike.disk.checksum import file_sha256


def clips(count: int = 3, high: int = 5):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(0)
    return [(i, random.integers(0, high, (2, 2, 4, 4))) for i in range(count)]


def test_made_once_then_mapped(tmp_path: Path) -> None:
    calls = []

    def make():  # type: ignore[no-untyped-def]
        calls.append(1)
        return iter(clips())

    first = cached_clips(tmp_path, "x", {"T": 2}, 3, make)
    again = cached_clips(tmp_path, "x", {"T": 2}, 3, make)
    assert len(calls) == 1
    assert isinstance(again, np.memmap) and not again.flags.writeable
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(again, np.stack([c for _, c in clips()]))


def test_counts_beyond_a_byte_widen_the_file(tmp_path: Path) -> None:
    """Clips before and after the large one are kept exactly."""
    made = clips(4)
    made[1][1][0, 0, 0, 0] = 300
    made[2][1][0, 0, 0, 0] = 70_000
    stored = cached_clips(tmp_path, "x", {}, 4, lambda: iter(made))
    assert stored.dtype == np.uint32
    np.testing.assert_array_equal(stored, np.stack([c for _, c in made]))


def test_every_frame_setting_changes_the_key() -> None:
    base = FrameSettings(4, "number", (48, 48), False)
    others = [
        replace(base, timesteps=5), replace(base, by="time"), replace(base, size=(48, 47)),
        replace(base, size=None), replace(base, antialias=True),
        replace(base, total=True),
    ]  # fmt: skip
    keys = [key_of(s.as_dict()) for s in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def test_an_error_midway_leaves_nothing(tmp_path: Path) -> None:
    def make():  # type: ignore[no-untyped-def]
        yield clips()[0]
        raise DataError("is damaged", "some.bin")

    with pytest.raises(DataError, match=r"some\.bin: is damaged"):
        cached_clips(tmp_path, "x", {}, 3, make)
    assert [p for p in tmp_path.iterdir() if p.suffix != ".lock"] == []
    assert len(cached_clips(tmp_path, "x", {}, 3, lambda: iter(clips()))) == 3


def test_missing_clips_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 3 clips"):
        cached_clips(tmp_path, "x", {}, 3, lambda: iter(clips()[:2]))


@pytest.mark.parametrize(
    "wreck", ["truncate", "header", "bit", "no meta", "broken meta", "nested meta", "other meta", "objects", "a file"]
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, wreck: str) -> None:
    cached_clips(tmp_path, "x", {}, 3, lambda: iter(clips()))
    (entry,) = (p for p in tmp_path.iterdir() if p.is_dir())
    if wreck == "truncate":
        os.truncate(entry / "clips.npy", 100)
    elif wreck == "header":
        with open(entry / "clips.npy", "r+b") as handle:
            handle.write(bytes(64))
    elif wreck == "bit":
        raw = bytearray((entry / "clips.npy").read_bytes())
        raw[-20] ^= 1
        (entry / "clips.npy").write_bytes(raw)
    elif wreck == "nested meta":
        (entry / "meta.json").write_text("[" * 100_000)
    elif wreck == "other meta":
        (entry / "meta.json").write_text("[1]")
    elif wreck == "objects":  # forged together with its checksum
        np.save(entry / "clips.npy", np.array([None] * 3), allow_pickle=True)
        (entry / "meta.json").write_text(json.dumps({"sha256": file_sha256(entry / "clips.npy")}))
    elif wreck == "a file":
        shutil.rmtree(entry)
        entry.touch()
    elif wreck == "no meta":
        (entry / "meta.json").unlink()
    else:
        (entry / "meta.json").write_text("{")
    np.testing.assert_array_equal(
        cached_clips(tmp_path, "x", {}, 3, lambda: iter(clips())), np.stack([c for _, c in clips()])
    )


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from steadyspike.data.clip_cache import cached_clips

folder, delay = Path(sys.argv[1]), float(sys.argv[2])

def make():
    (folder / f"began-{time.monotonic_ns()}").touch()
    for i in range(20):
        time.sleep(delay)
        yield i, np.full((2, 2, 4, 4), i)

out = cached_clips(folder / "cache", "x", {"T": 2}, 20, make)
assert all((out[i] == i).all() for i in range(20))
print("ok")
"""


def start(folder: Path, delay: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), str(delay)], stdout=subprocess.PIPE
    )


def wait_for(condition, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def test_two_processes_at_once_do_the_work_once(tmp_path: Path) -> None:
    both = [start(tmp_path, 0.02) for _ in range(2)]
    assert [p.communicate(timeout=60)[0].strip() for p in both] == [b"ok", b"ok"]
    assert len(list(tmp_path.glob("began-*"))) == 1


def test_killed_midway_then_started_again(tmp_path: Path) -> None:
    """SIGKILL while clips are being written: the next process does not wait, removes the rest and builds it again."""
    process = start(tmp_path, 0.2)
    wait_for(lambda: list((tmp_path / "cache").glob("x-*.partial-*/clips.npy")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list((tmp_path / "cache").glob("*.partial-*"))
    assert start(tmp_path, 0).communicate(timeout=60)[0].strip() == b"ok"
    assert not list((tmp_path / "cache").glob("*.partial-*"))


def test_build_once_keeps_what_another_process_finished(tmp_path: Path) -> None:
    target = tmp_path / "made"

    def build(folder: Path) -> None:
        (folder / "mine").touch()
        target.mkdir()  # another process without locks was faster
        (target / "theirs").touch()

    build_once(target, Path.is_dir, build)
    assert [p.name for p in target.iterdir()] == ["theirs"]
    assert not list(tmp_path.glob("*.partial-*"))


def test_a_folder_that_cannot_be_written_falls_back_and_nothing_is_made(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert writable_dir(blocked / "below", tmp_path / "next") == tmp_path / "next"
    assert not (tmp_path / "next").exists()
    with pytest.raises(DataError, match=r"file: cannot be written to \(cache_dir\)"):
        DataFolders.of(None, blocked, download=False)


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is reserved before it is mapped: writing to a mapped hole on a full disk would kill the process."""

    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"x-\w+: cannot be written \(No space left on device\)"):
        cached_clips(tmp_path, "x", {}, 3, lambda: iter(clips()))
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As for a user who may read `folder` but not write to it (tests may run as root, whom nothing stops)."""

    def can_write(path: Path) -> bool:
        return folder not in (path, *path.parents)

    for module in (cache, folders_module):
        monkeypatch.setattr(module, "can_write", can_write)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(cache, "lock", refuse)


def test_a_complete_cache_that_can_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by someone else beside shared data: neither built again elsewhere nor an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    first = data.load("digits-events", tmp_path / "data", timesteps=2)
    made = tmp_path / "data" / ".steadyspike"
    read_only(monkeypatch, tmp_path / "data")
    for again in (
        data.load("digits-events", tmp_path / "data", timesteps=2),
        data.load("digits-events", cache_dir=made, timesteps=2),
    ):
        assert again.dataset.source.data.filename == first.dataset.source.data.filename  # type: ignore[attr-defined]
    assert not (tmp_path / "home" / "steadyspike").exists()
    with pytest.raises(DataError, match=r"digits-events-\w+: cannot be written \(Permission denied\)"):
        data.load("digits-events", cache_dir=made, timesteps=3)


def test_an_incomplete_one_is_built_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    shared = tmp_path / "data" / ".steadyspike"
    shared.mkdir(parents=True)
    monkeypatch.setattr(cache, "can_write", lambda path: shared not in (path, *path.parents))
    monkeypatch.setattr(folders_module, "can_write", cache.can_write)
    location = DataFolders.of(tmp_path / "data", None, download=False)
    assert location.ready == (shared,) and location.cache_dir == tmp_path / "home" / "steadyspike"
    assert location.within("a").where("b") == location.cache_dir / "a" / "b"
    (shared / "a" / "b").mkdir(parents=True)
    assert location.within("a").where("b") == shared / "a" / "b"

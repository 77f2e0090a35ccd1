"""The fault test's readers in short: `make torture` reads a hundred times as many files."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture import fuzz, readers
from torture.fuzz import Reader

READERS = {reader.name: reader for reader in readers.readers()}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_or_read(name: str) -> None:
    tally = fuzz.fuzz(READERS[name], 40, seed=1)
    assert tally.failures == []
    assert tally.refused + tally.accepted == tally.tries == 40


def test_at_least_twelve_readers_and_a_hundred_thousand_files() -> None:
    assert len(READERS) >= 12
    unit = 110_000 / sum(reader.share for reader in READERS.values())
    assert sum(int(unit * reader.share) for reader in READERS.values()) >= 100_000


def hang(path: Path) -> None:
    while True:
        pass


def crash(path: Path) -> None:
    import faulthandler
    import os

    # The crash is meant: pytest's handler would fill the log with a dump that looks like a failure.
    faulthandler.disable()
    os.abort()


def grow(path: Path) -> None:
    import mmap

    # Pages of its own: a large bytes object may lie in memory that this process freed before and still holds.
    with mmap.mmap(-1, 200 << 20) as pages:
        pages[:] = bytes(1) * (200 << 20)


def flood(path: Path) -> None:
    (b"x" * (1500 << 20)).find(b"y")


def leak(path: Path) -> None:
    raise KeyError("of the reader's own")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (hang, "still reading"),
        (crash, "ended by signal 6"),
        (grow, "64 are allowed"),
        (flood, "MemoryError"),
        (leak, "KeyError"),
    ],
)
def test_a_reader_that_fails_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read, message: str) -> None:  # type: ignore[no-untyped-def]
    """The fault test itself: a hang, a crash, too much memory and a foreign error are found, and the file is kept."""
    monkeypatch.setattr(fuzz, "PATIENCE", 1.0 if read is hang else 60.0)
    calls: list[int] = []

    def later(path: Path) -> object:
        calls.append(1)
        return None if len(calls) == 1 else read(path)  # the first file is the good one that warms up

    tally = fuzz.fuzz(Reader("bad", (b"some bytes",), later), 2, seed=0, keep=tmp_path)
    assert len(tally.failures) == 2 and all(message in text for text in tally.failures), tally
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_seed_gives_the_same_files() -> None:
    reader = READERS["zip"]
    assert [fuzz.damaged(reader, 3, i) for i in range(20)] == [fuzz.damaged(reader, 3, i) for i in range(20)]
    assert fuzz.damaged(reader, 3, 0) != fuzz.damaged(reader, 4, 0)

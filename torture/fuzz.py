"""Feeds damaged files to a reader, many in one forked process, under a limit of memory and time for each file."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from torture.limits import MIB, cap, held, judged, reset_peak
from torture.mutate import mutated
from torture.tally import Tally

# One file may take this long by the clock before its process is stopped; its own CPU time is limited by Reader.seconds.
PATIENCE = 60.0
_STATE = struct.Struct("<qqqqq")


@dataclass(frozen=True)
class Reader:
    """A reader and good files for it.

    read: raises DataError, or returns what `check` accepts (an AssertionError is a failure). pack: applied to a damaged
    file half of the time, for formats that are compressed: damage inside is found by the reader, not by the checksum.
    memory: bytes by which reading one file may make the process grow. share: of the files, compared with other readers.
    """

    name: str
    good: tuple[bytes, ...]
    read: Callable[[Path], object]
    check: Callable[[object], None] = lambda value: None
    pack: Callable[[bytes], bytes] | None = None
    suffix: str = ""
    memory: int = 64 * MIB
    seconds: float = 5.0
    share: float = 1.0


def damaged(reader: Reader, seed: int, index: int) -> bytes:
    """File `index` of a run with `seed`: the same bytes every time."""
    chance = random.Random(f"{seed}/{reader.name}/{index}")
    raw = mutated(chance.choice(reader.good), chance)
    return reader.pack(raw) if reader.pack is not None and chance.random() < 0.5 else raw


def fuzz(reader: Reader, count: int, seed: int, keep: Path | None = None) -> Tally:
    """Reads `count` damaged files. keep: a folder for those that made the reader fail."""
    tally = Tally(reader.name, count)
    shared = mmap.mmap(-1, _STATE.size)
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        at = 0
        while at < count:
            failure = _watch(reader, at, count, seed, folder, shared)
            done, refused, accepted, _, _ = _STATE.unpack(shared)
            tally.refused, tally.accepted = tally.refused + refused, tally.accepted + accepted
            at = done + (failure is not None)
            if failure is not None:
                tally.failures.append(f"{reader.name} file {done} (seed {seed}): {failure}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{reader.name}-{seed}-{done}{reader.suffix}").write_bytes(damaged(reader, seed, done))
    finally:
        shared.close()
        shutil.rmtree(folder, ignore_errors=True)
    return tally


def _watch(reader: Reader, start: int, count: int, seed: int, folder: Path, shared: mmap.mmap) -> str | None:
    """Runs files start, start + 1, ... in a process until the end or a failure, which is returned."""
    shared[:] = _STATE.pack(start, 0, 0, 0, 0)
    printed, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(printed)
        _work(reader, start, count, seed, folder, shared, write)
    os.close(write)
    last, since, stopped = start, time.monotonic(), False
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.02)
        done = _STATE.unpack(shared)[0]
        if done != last:
            last, since = done, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            os.kill(child, signal.SIGKILL)
            ended, stopped = os.waitpid(child, 0), True
            break
    with os.fdopen(printed, "rb") as pipe:
        text = pipe.read().decode("utf-8", "replace")
    if stopped:
        return f"still reading after {PATIENCE:.0f} seconds"
    if os.WIFSIGNALED(ended[1]):
        return f"the process ended by signal {os.WTERMSIG(ended[1])}"
    return text or None


def _work(reader: Reader, start: int, count: int, seed: int, folder: Path, shared: mmap.mmap, write: int) -> NoReturn:
    """In the child: reads the files one by one; writes what went wrong with the first that fails to the pipe."""
    path = folder / f"file{reader.suffix}"
    refused = accepted = 0
    try:
        path.write_bytes(reader.good[0])
        judged(lambda: reader.read(path))  # imports and caches are not the first file's cost
        cap(max(4 * reader.memory, 512 * MIB))
        for index in range(start, count):
            _STATE.pack_into(shared, 0, index, refused, accepted, 0, 0)
            path.write_bytes(damaged(reader, seed, index))
            failure, kind = _one(reader, path)
            if failure is not None:
                os.write(write, failure.encode()[:4000])
                os._exit(0)
            refused, accepted = refused + (kind == "refused"), accepted + (kind == "returned")
        _STATE.pack_into(shared, 0, count, refused, accepted, 0, 0)
    except BaseException as error:
        os.write(write, f"the test itself failed: {error!r}".encode())
    finally:
        os._exit(0)


def _one(reader: Reader, path: Path) -> tuple[str | None, str]:
    """(what is wrong with how the reader took the file, kind of outcome)."""
    reset_peak()
    before, start = held(), time.process_time()
    kind, text = judged(lambda: reader.check(reader.read(path)))
    grown, spent = held() - before, time.process_time() - start
    if kind == "raised":
        return text, kind
    if kind == "refused" and (not text.startswith(str(path.parent)) or "\n" in text or len(text) > 2000):
        return f"the error is not one line that begins with the file's name: {text[:300]!r}", kind
    if grown > reader.memory:
        return f"took {grown // MIB} MiB; {reader.memory // MIB} are allowed", kind
    if spent > reader.seconds:
        return f"took {spent:.1f} seconds; {reader.seconds} are allowed", kind
    return None, kind

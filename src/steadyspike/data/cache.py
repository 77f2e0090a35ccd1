"""Clips on disk: one memory-mapped array per hash of every setting that changes it.

A cache entry is a folder `<name>-<key>` with `clips.npy` and `meta.json`. It is built in a partial folder beside it and
renamed when complete, so it exists whole or not at all; a lock that dies with its process lets one builder work while
others wait, and whoever holds the lock may remove partial folders that a killed process left.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, disk_errors

Clips = Iterable[tuple[int, NDArray[Any]]]


def key_of(settings: dict[str, Any]) -> str:
    """A short hash of `settings` (anything JSON holds), independent of the order of its keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def default_dir() -> Path:
    """Where things the library makes are kept when no folder is named: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "steadyspike"


def can_write(folder: Path) -> bool:
    """Whether `folder` can be written to or made; nothing is made."""
    nearest = next((p for p in (folder, *folder.absolute().parents) if p.exists()), None)
    return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def writable_dir(*candidates: Path) -> Path:
    """The first of `candidates` (then a folder in the temporary one) that can be written to; nothing is made yet."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for folder in (*candidates, Path(tempfile.gettempdir()) / f"steadyspike-{user}"):
        if can_write(folder):
            return folder
    raise DataError("cannot be written to; pass cache_dir=... with a folder that can.", candidates[0])


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system releases it when the process ends, however it ends.

    Where locks do not exist (Windows, some network disks) work may be done twice, never wrongly: renames decide.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass
        yield


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A new folder to fill that becomes `target` when the block ends well and vanishes when it does not."""
    partial = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        yield partial
        try:
            os.rename(partial, target)
        except OSError:
            if not target.is_dir():  # otherwise another process finished the same work first
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def build_once(target: Path, complete: Callable[[Path], bool], build: Callable[[Path], None]) -> Path:
    """`target`, built by `build(folder)` unless `complete(target)`; safe with any number of processes at once.

    What is complete is only read, so it may lie where nothing can be written. A disk that refuses is a DataError.
    """
    if complete(target):
        return target
    with disk_errors(target), lock(target.with_name(target.name + ".lock")):
        if not complete(target):
            for left_over in target.parent.glob(f"{target.name}.partial-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            if target.is_file():
                target.unlink()
            elif target.exists():
                shutil.rmtree(target)
            with atomic_folder(target) as folder:
                build(folder)
    return target


class ClipWriter:
    """Writes clips [N, *shape] to one .npy file; integer counts start as uint8 and widen when one does not fit."""

    def __init__(self, folder: Path, count: int, first: NDArray[Any]) -> None:
        self.folder, self.shape = folder, (count, *first.shape)
        self.counts = np.issubdtype(first.dtype, np.integer)
        self.array = self._open("clips.npy", np.dtype(np.uint8 if self.counts else first.dtype))

    def _open(self, name: str, dtype: np.dtype) -> NDArray[Any]:
        array = np.lib.format.open_memmap(self.folder / name, mode="w+", dtype=dtype, shape=self.shape)
        if hasattr(os, "posix_fallocate"):
            # Writing to a mapped hole on a full disk kills the process; reserving the space first raises instead.
            with open(self.folder / name, "r+b") as handle:
                try:
                    os.posix_fallocate(handle.fileno(), 0, (self.folder / name).stat().st_size)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not every disk can
                        raise
        return array

    def write(self, index: int, clip: NDArray[Any]) -> None:
        if self.counts and clip.max() > np.iinfo(self.array.dtype).max:
            self._widen(np.min_scalar_type(int(clip.max())))
        self.array[index] = clip

    def _widen(self, dtype: np.dtype) -> None:
        wider = self._open("wider.npy", dtype)
        wider[:] = self.array
        wider.flush()  # type: ignore[attr-defined]
        self.array = wider
        os.replace(self.folder / "wider.npy", self.folder / "clips.npy")

    def close(self) -> None:
        self.array.flush()  # type: ignore[attr-defined]


def cached_clips(
    cache_dir: Path,
    name: str,
    settings: dict[str, Any],
    count: int,
    make: Callable[[], Clips],
    ready: Iterable[Path] = (),
) -> NDArray[Any]:
    """The read-only memory map [count, T, 2, H, W] for `settings`; `make()` yields (index, clip) when it is not there.

    `make` may yield in any order but must yield every index once. `ready`: caches that are looked into, never written.
    """
    settings = {**settings, "count": count, "layout": 1}
    entry = f"{name}-{key_of(settings)}"
    target = next((folder / entry for folder in ready if _complete(folder / entry)), cache_dir / entry)

    def build(folder: Path) -> None:
        writer: ClipWriter | None = None
        missing = np.ones(count, bool)
        for index, clip in make():
            writer = writer or ClipWriter(folder, count, clip)
            writer.write(index, clip)
            missing[index] = False
        if writer is None or missing.any():
            raise DataError(f"{int(missing.sum())} of {count} clips of '{name}' were not made.")
        writer.close()
        meta = {"settings": settings, "file": _seen(folder / "clips.npy")}
        (folder / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True))

    build_once(target, _complete, build)
    clips: NDArray[Any] = np.load(target / "clips.npy", mmap_mode="r")
    return clips


def _seen(file: Path) -> list[Any]:
    """Size and first bytes of an .npy file: its header, which says what the rest means, lies in them."""
    with open(file, "rb") as handle:
        return [os.fstat(handle.fileno()).st_size, handle.read(128).hex()]


def _complete(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        return bool(_seen(folder / "clips.npy") == meta["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return False

"""Folders that the library writes: complete or not at all, by one process at a time.

A folder is built under another name in the same parent folder and renamed when it is complete. A lock lets one process
build the folder while others wait; it ends with its process. The builder removes partial folders that a killed process
left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steadyspike.data.errors import DataError, disk_errors
from steadyspike.disk.lock import lock_file


def key_of(settings: dict[str, Any]) -> str:
    """Returns a short hash of `settings` (any JSON value), independent of the order of its keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def default_dir() -> Path:
    """Returns the user's cache folder, for files that the library makes if the user names no folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "steadyspike"


def can_write(folder: Path) -> bool:
    """Returns whether `folder` can be written to or made; nothing is made."""
    nearest = next((p for p in (folder, *folder.absolute().parents) if p.exists()), None)
    return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def writable_dir(*candidates: Path) -> Path:
    """Returns the first of `candidates` that can be written to, or else a folder in the temporary one.

    Nothing is made yet.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for folder in (*candidates, Path(tempfile.gettempdir()) / f"steadyspike-{user}"):
        if can_write(folder):
            return folder
    raise DataError("cannot be written to; pass cache_dir=... with a folder that can", candidates[0])


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the system releases it when the process ends, for whatever reason.

    If the disk has no locks (some network disks), work may be done twice, but the result is still correct, because the
    first rename decides.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        with contextlib.suppress(OSError):
            lock_file(handle, wait=True)
        yield


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Gives a new folder to fill. It becomes `target` if the block ends without an error, and is deleted otherwise."""
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
    """Returns `target`; builds it by `build(folder)` unless `complete(target)`.

    Safe with any number of processes at once.

    A complete entry is only read, so its folder may be read-only. Disk errors become a DataError.
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

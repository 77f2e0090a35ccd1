"""Files that a crash cannot damage: written beside, synced, renamed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file."""


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Any, keep: Path | None = None) -> None:
    """``write(file)`` into a temporary file of the same folder, fsync, rename onto ``path``, fsync the folder.

    keep: where the file that stood at ``path`` goes. If writing fails (disk full), nothing that existed has changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        old = "; the one before it is intact" if path.exists() else ""
        raise CheckpointError(f"{path} could not be written: {why_not_written(path, error)}{old}") from error
    if keep is not None and path.exists():
        os.replace(path, keep)
    os.replace(partial, path)
    sync_folder(path.parent)


def why_not_written(path: Path, error: BaseException) -> str:
    """The reason in words."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = (
            cause.__cause__ or cause.__context__
        )  # torch's writer complains about positions; the reason is behind it
    if not isinstance(cause, OSError):
        return str(error).splitlines()[0]
    if cause.errno == errno.ENOSPC:
        return f"its disk is full ({shutil.disk_usage(path.parent).free / 2**20:.1f} MB are free)"
    if cause.errno == errno.EFBIG:
        return "it would be larger than a file of this process may be (ulimit -f)"
    return cause.strerror or str(cause)


def link(source: Path, target: Path) -> None:
    """``target`` becomes another name of ``source``, at once; a copy where the disk knows no links."""
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)
    sync_folder(target.parent)

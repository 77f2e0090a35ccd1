"""Writes files so that a crash leaves the old file or the new one, never a part of one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file."""


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` last a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Any, keep: Path | None = None) -> None:
    """Calls ``write(file)`` on a temporary file in the same folder, syncs it and renames it to ``path``.

    keep: the new name of the file that was at ``path``. If writing fails, for example on a full disk, no existing file
    has changed.
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
    """Why a file could not be written, in words."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        # torch's writer reports a wrong position in the file; the system's error is the cause of that one.
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, OSError):
        return str(error).splitlines()[0]
    if cause.errno == errno.ENOSPC:
        return f"its disk is full ({shutil.disk_usage(path.parent).free / 2**20:.1f} MB are free)"
    if cause.errno == errno.EFBIG:
        return "it would be larger than a file of this process may be (ulimit -f)"
    return cause.strerror or str(cause)


def link(source: Path, target: Path) -> None:
    """Makes ``target`` another name of ``source`` in one step; a copy on disks without hard links."""
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)
    sync_folder(target.parent)

"""Writes files so that after a crash either the old or the new file exists, never a part of one."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from steadyspike.disk.lock import lock_file
from steadyspike.disk.plain_text import PlainError


class CheckpointError(PlainError, RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file."""


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` survive a power cut. Windows has no such call for folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Any, keep: Path | None = None) -> None:
    """Calls ``write(file)`` on a temporary file in the same folder, syncs it and renames it to ``path``.

    keep: the new name of the file that was at ``path``

    If writing fails, for example on a full disk, no existing file has changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_overs(path)
    # A unique name: another process may write the same file at the same time, and the last one wins.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with _locked(partial) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if keep is not None and path.exists():
                os.replace(path, keep)
            if os.name == "nt":  # Windows can rename only closed files
                file.close()
            os.replace(partial, path)  # under the lock; otherwise other processes would treat it as a leftover
    except (OSError, RuntimeError) as error:
        old = "; the previous file is intact" if path.exists() else ""
        raise CheckpointError(f"{path} could not be written: {why_not_written(path, error)}{old}") from error
    finally:
        with suppress(OSError):  # it was renamed, or the first error is the one to report
            partial.unlink()
    sync_folder(path.parent)


def _locked(partial: Path) -> IO[bytes]:
    """Creates a file and locks it as long as it is open.

    When the process ends, for whatever reason, the lock is released.
    """
    while True:
        file = open(partial, "xb")  # noqa: SIM115 - the caller closes it
        with suppress(OSError):  # a disk without locks
            lock_file(file, wait=True)
        if os.fstat(file.fileno()).st_nlink > 0:
            return file
        file.close()  # another process took it for a leftover and removed it before it was locked


def _remove_left_overs(path: Path) -> None:
    """Removes temporary files of ``path`` that killed processes left.

    A locked file is still being written and stays.
    """
    for name in os.listdir(path.parent):
        if name.startswith(f".{path.name}.") and name.endswith(".partial"):
            with suppress(OSError), open(path.with_name(name), "rb") as file:
                if lock_file(file):
                    path.with_name(name).unlink()


def why_not_written(path: Path, error: BaseException) -> str:
    """Returns why a file could not be written, in words."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        # torch's writer reports a wrong position in the file; the error of the system is its cause.
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, OSError):
        return str(error).splitlines()[0]
    if cause.errno == errno.ENOSPC:
        return f"its disk is full ({shutil.disk_usage(path.parent).free / 2**20:.1f} MB are free)"
    if cause.errno == errno.EFBIG:
        return "it would be larger than a file of this process may be (ulimit -f)"
    return cause.strerror or str(cause)


def link(source: Path, target: Path) -> None:
    """Makes ``target`` another name of ``source`` atomically; a copy on disks without hard links.

    Only for files of a run, whose folder is locked by one process: its temporary name is always the same.
    """
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)
    sync_folder(target.parent)

"""Checkpoint files that a crash cannot damage: written beside, synced, renamed; read only when whole and ours."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

FORMAT = "steadyspike-checkpoint-1"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file."""


def _sync_folder(folder: Path) -> None:
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
    _sync_folder(path.parent)


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


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's checkpoint plugin over `write_atomically`; the previous file of a name is kept as PREVIOUS."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        write_atomically(path, lambda file: torch.save(checkpoint, file), keep=previous_of(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def previous_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def read_checkpoint(path: Path, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """A whole checkpoint of this library, on the CPU, loaded with ``weights_only=True``.

    identity: values that the checkpoint must carry (recipe, split, number of processes), else it is another run's.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged in {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is truncated or no checkpoint ({type(error).__name__})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this library")
    for key, wanted in (identity or {}).items():
        found = state.get("identity", {}).get(key)
        if found != wanted:
            raise CheckpointError(f"{path} belongs to another run: its {key} is {found}, here it is {wanted}")
    return state


def latest(path: Path, identity: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest usable state of ``path`` and its previous one, and why those before it were refused.

    Both missing: (None, []). Both there and unusable: an error, since starting over would hide a loss.
    """
    refused: list[str] = []
    for candidate in (path, previous_of(path)):
        if not candidate.exists():
            continue
        try:
            return read_checkpoint(candidate, identity), refused
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError("; ".join(refused) + "; there is no checkpoint left to continue from")
    return None, []


def link(source: Path, target: Path) -> None:
    """``target`` becomes another name of ``source``, at once; a copy where the disk knows no links."""
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)
    _sync_folder(target.parent)

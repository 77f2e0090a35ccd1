"""Checkpoint files: they have a checksum, are replaced atomically, and are read only if they are undamaged and ours."""

from __future__ import annotations

import filecmp
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from steadyspike.core.torch_private import storage_key, tree_leaves
from steadyspike.disk.sealed import SealedWriter, SealError, check_trailer
from steadyspike.train.files.atomic import CheckpointError, link, write_atomically
from steadyspike.train.files.folder import DamagedRun, RunFolder

FORMAT = "steadyspike-checkpoint-2"
_FOLDER_BIT = 0x10  # marks a folder in a zip; torch would leave such a tensor uninitialised


class OtherRun(CheckpointError):
    """An undamaged checkpoint of another recipe, split or number of processes."""


def previous_of(path: Path) -> Path:
    """Maps ``last.ckpt`` to ``last.previous.ckpt``."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Replaces a checkpoint atomically; the old file is kept under the name of `previous_of`."""
    write_atomically(path, lambda file: write_state(state, file), keep=previous_of(path))


def write_state(state: dict[str, Any], file: BinaryIO) -> None:
    """Writes torch's zip file, followed by a checksum of all of it; ``torch.load`` can read it."""
    sealed = SealedWriter(file)
    torch.save(state, sealed)  # type: ignore[arg-type]
    sealed.finish()


def read_state(file: BinaryIO) -> Any:
    """Reads what `write_state` wrote, to the CPU; raises SealError or an error of torch if it was changed."""
    check_trailer(file)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.is_dir() or entry.external_attr & _FOLDER_BIT for entry in entries):
            raise SealError("holds a folder")
        # torch writes no such files. A few kilobytes could unpack to all memory, and of two entries with one name one
        # would win.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise SealError("was packed again, with compression")
        if len({entry.filename for entry in entries}) < len(entries):
            raise SealError("holds two entries of one name")
    file.seek(0)
    state = torch.load(file, map_location="cpu", weights_only=True)
    # torch 2.8 does not compare the two: a tensor longer than its entry would read other memory of the process.
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    sizes = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    written = [entry.file_size for entry in entries if entry.filename.split("/")[-2:-1] == ["data"]]
    if sorted(written) != sorted(sizes.values()):
        raise ValueError("tensors and entries differ in size")
    return state


def read_checkpoint(path: Path, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads a checkpoint of this library, to the CPU, with ``weights_only=True``.

    identity: values that the checkpoint must contain (recipe, split, number of processes); otherwise it belongs to
    another run
    """
    try:
        with open(path, "rb") as file:
            state = read_state(file)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except SealError as error:
        raise CheckpointError(f"{path} {error}") from None
    except Exception as error:
        raise CheckpointError(f"{path} is not a checkpoint ({type(error).__name__})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this library")
    carried = state.get("identity")
    for key, expected in (identity or {}).items():
        actual = carried.get(key) if isinstance(carried, dict) else None
        if actual != expected:
            raise OtherRun(f"{path} belongs to another run: its {key} is {actual}, here it is {expected}")
    return state


class Found(NamedTuple):
    """The result of `latest`.

    state: of the newest usable checkpoint, or None
    path: its file
    refused: why newer ones cannot be used
    """

    state: dict[str, Any] | None
    path: Path
    refused: list[str]


def latest(
    path: Path, identity: dict[str, Any], problem: Callable[[dict[str, Any]], str | None] = lambda state: None
) -> Found:
    """Finds the newest usable checkpoint: ``path``, or the previous one.

    problem: returns why a state cannot be used although its file is undamaged; None if it can


    If there are checkpoints and none can be used, that is an error, because a new start would hide the loss. The error
    is a DamagedRun, unless one of the checkpoints is undamaged and belongs to another run: then the request is wrong,
    not the files.
    """
    refused: list[str] = []
    kind: type[CheckpointError] = DamagedRun
    for candidate in (path, previous_of(path)):
        if not candidate.exists():
            continue
        try:
            state = read_checkpoint(candidate, identity)
            if (text := problem(state)) is None:
                return Found(state, candidate, refused)
            refused.append(f"{candidate} cannot be used: {text}")
        except CheckpointError as error:
            refused.append(str(error))
            if isinstance(error, OtherRun):
                kind = CheckpointError
    if refused:
        raise kind(
            "; ".join(refused) + "; there is no checkpoint left to continue from: restore the damaged file from a "
            "copy, or start again in another folder (--out)"
        )
    return Found(None, path, [])


def keep_best(folder: RunFolder) -> None:
    """Gives last.ckpt, which is the best, the name best.ckpt too."""
    if folder.best.exists():
        filecmp.clear_cache()  # it compares sizes and times, which two checkpoints may share
        if filecmp.cmp(folder.best, folder.last, shallow=False):  # in a copied folder they are two equal files
            return
        link(folder.best, previous_of(folder.best))
    link(folder.last, folder.best)


def read_best(folder: RunFolder, epoch: int, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the checkpoint of the best epoch, ``epoch``; raises DamagedRun if it is missing or damaged."""
    problems: list[str] = []
    for path in (folder.best, previous_of(folder.best)):
        if not path.exists():
            problems.append(f"{path} is missing")
            continue
        try:
            state = read_checkpoint(path, identity)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if state.get("epoch") == epoch and state.get("batch") == 0:
            return state
        problems.append(f"{path} belongs to epoch {state.get('epoch')}")
    raise DamagedRun(
        f"{problems[0]}: the best epoch ({epoch}) cannot be tested; restore the file and --resume, or train again in "
        "another folder (--out)"
    )

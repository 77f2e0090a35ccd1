"""Checkpoint files that a crash cannot damage: written beside, synced, renamed; read only when whole and ours."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from steadyspike.train.files.atomic import CheckpointError, write_atomically

FORMAT = "steadyspike-checkpoint-1"


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

"""best.ckpt: the checkpoint of the best epoch so far, and the best one before it.

Both are further names of files that were last.ckpt once. The one before is kept because the run may have to continue
from last.previous.ckpt, for which it is the best.
"""

from __future__ import annotations

from typing import Any

from steadyspike.train.files.atomic import CheckpointError, link
from steadyspike.train.files.checkpoint import previous_of, read_checkpoint
from steadyspike.train.files.folder import DamagedRun, RunFolder


def keep_best(folder: RunFolder) -> None:
    """last.ckpt is the best: gives it the name best.ckpt, too."""
    if folder.best.exists():
        if folder.best.samefile(folder.last):
            return
        link(folder.best, previous_of(folder.best))
    link(folder.last, folder.best)


def read_best(folder: RunFolder, epoch: int, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """The checkpoint of the best epoch, ``epoch``; DamagedRun where it is gone or damaged."""
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
        problems.append(f"{path} is of epoch {state.get('epoch')}")
    raise DamagedRun(
        f"{problems[0]}: the best epoch ({epoch}) cannot be tested; restore the file and --resume, or train again in "
        "another folder (--out)"
    )

"""Random corruptions of every file that is written and read again: none may be accepted with other content.

These are the files of a run, and the array of a clip cache.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steadyspike.data.clip_cache import cached_clips
from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.tables import extent_problem
from steadyspike.train.files.weights import read_weights
from torture.mutate import mutated
from torture.small_run import straight_run, work_folder
from torture.tally import Tally
from torture.workers import shared_out

TRIES = 100_000
CLIPS = "a clip cache"
FILES = (
    "checkpoints/last.ckpt", "weights.safetensors", "recipe.toml", "run.json", "result.json", "metrics.csv",
    "layers.csv", "steps.csv", "health.csv",
)  # fmt: skip


def reader(folder: RunFolder, name: str) -> Callable[[], Any]:
    """What reads a file of a run: raises CheckpointError or RunError if it was changed."""
    if name.endswith(".ckpt"):
        return lambda: read_checkpoint(folder.root / name)
    if name.endswith(".safetensors"):
        return lambda: read_weights(folder.root / name)
    if name.endswith(".toml"):
        return folder.read_recipe
    if name.endswith(".json"):
        return lambda: folder.read_json(name)
    extent = folder.read_json("result.json")["tables"][name.removesuffix(".csv")]

    def table() -> None:
        if (problem := extent_problem(folder.root / name, extent)) is not None:
            raise CheckpointError(problem)

    return table


def corrupt(root: Path, name: str, tries: int, seed: int) -> Tally:
    """Corrupts one file of a run so many times."""
    # What was appended to a table is cut off, so its beginning alone counts.
    return _corrupted(root / name, reader(RunFolder(root), name), name, tries, seed, name.endswith(".csv"))


def corrupt_clips(root: Path, tries: int, seed: int) -> Tally:
    """Corrupts the array of a clip cache so many times: it must be made again, which is refused here."""
    clips = np.arange(3 * 2 * 2 * 8 * 8, dtype=np.int64).reshape(3, 2, 2, 8, 8) % 7

    def load(cache: Path, make: Callable[[], Any], *ready: Path) -> None:
        cached_clips(cache, "clips", {}, len(clips), make, ready, clips.shape[1:])

    def refuse() -> Any:
        raise CheckpointError("the clips are not in the cache")

    load(root, lambda: enumerate(clips))
    (file,) = root.glob("*/clips.npy")
    return _corrupted(file, lambda: load(root / "none", refuse, root), CLIPS, tries, seed)


def _corrupted(path: Path, read: Callable[[], Any], name: str, tries: int, seed: int, behind: bool = False) -> Tally:
    """behind: bytes that are only appended change nothing."""
    tally, clean = Tally(f"corruption of {name}"), path.read_bytes()
    try:
        for number in range(10 * tries):
            if tally.tries == tries:
                break
            content = mutated(clean, random.Random(f"{seed}/{name}/{number}"))
            if content == clean or (behind and content.startswith(clean)):
                continue  # the same file again, or a table with something behind it
            path.write_bytes(content)
            tally.count(_outcome(read, f"{name}, corruption {number} of seed {seed}"))
    finally:
        path.write_bytes(clean)
    return tally


def _outcome(read: Callable[[], Any], what: str) -> str | None:
    try:
        read()
    except (CheckpointError, RunError) as error:
        return f"{what}: the error is not one line" if "\n" in str(error) else None
    except BaseException as error:
        return f"{what}: {type(error).__name__}: {error}"
    return f"{what}: accepted with other content"


def _job(job: tuple[str, str, int, int]) -> Tally:
    source, name, tries, seed = job
    with work_folder(in_memory=True) as copy:
        if name == CLIPS:
            return corrupt_clips(Path(copy), tries, seed)
        shutil.copytree(source, copy, dirs_exist_ok=True)
        return corrupt(Path(copy), name, tries, seed)


def torture(scale: float, seed: int) -> list[Tally]:
    """Every file of a finished run, and a clip cache."""
    tallies = []
    with work_folder() as folder:
        straight_run(Path(folder) / "run")
        jobs = [(f"{folder}/run", name, max(10, round(TRIES * scale)), seed) for name in (*FILES, CLIPS)]
        for tally in shared_out(_job, jobs):
            tallies.append(tally)
            tally.say()
    return tallies

"""Random corruptions of every file that a run writes and reads again: none may be accepted with other content."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.tables import extent_problem
from steadyspike.train.files.weights import read_weights
from torture.mutate import mutated
from torture.small_run import straight_run, work_folder
from torture.tally import Tally

TRIES = 100_000
FILES = (
    "checkpoints/last.ckpt", "weights.safetensors", "recipe.toml", "run.json", "result.json", "metrics.csv",
    "layers.csv", "steps.csv",
)  # fmt: skip


def reader(folder: RunFolder, name: str) -> Callable[[], Any]:
    """What reads a file of a run: raises CheckpointError or RunError where it was changed."""
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
    """Corrupts one file so many times."""
    path, tally = root / name, Tally(f"corruption of {name}")
    clean, read = path.read_bytes(), reader(RunFolder(root), name)
    behind = name.endswith(".csv")  # what was appended to a table is cut off, so its beginning alone counts
    try:
        for number in range(tries):
            content = mutated(clean, random.Random(f"{seed}/{name}/{number}"))
            if content == clean or (behind and content.startswith(clean)):
                continue
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
    with work_folder() as copy:
        shutil.copytree(source, copy, dirs_exist_ok=True)
        return corrupt(Path(copy), name, tries, seed)


def torture(scale: float, seed: int) -> list[Tally]:
    """Every file of a finished run."""
    with work_folder() as folder:
        straight_run(Path(folder) / "run")
        jobs = [(f"{folder}/run", name, max(10, round(TRIES * scale)), seed) for name in FILES]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(_job, jobs, chunksize=1)

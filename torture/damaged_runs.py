"""Whole commands on runs with a damaged file: the result of the run without a fault, or one line; never a traceback."""

from __future__ import annotations

import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from steadyspike.commands import evaluate, train
from torture.mutate import mutated
from torture.small_run import SETTINGS, difference, ended, fork, straight_run, work_folder
from torture.tally import Tally
from torture.workers import shared_out

TRIES = 100  # of each command


def files(root: Path) -> list[Path]:
    """What a run wrote and reads again."""
    actual = [*root.glob("*.json"), *root.glob("*.toml"), *root.glob("*.csv"), *root.glob("*.safetensors")]
    return sorted([*actual, *root.glob("checkpoints/*")])


def damage(root: Path, chance: random.Random) -> str:
    """Damages one file: corrupted, deleted, empty, or a folder in its place."""
    path, kind = chance.choice(files(root)), chance.randrange(5)
    content = path.read_bytes() or b"x"
    path.unlink()  # a new file, since others may be further names of this one
    if kind == 1:
        return f"{path.name} deleted"
    if kind == 2:
        path.mkdir()
        return f"{path.name} is a folder"
    path.write_bytes(b"" if kind == 3 else mutated(content, chance))
    return f"{path.name} {'emptied' if kind == 3 else 'corrupted'}"


def command(root: Path, resume: bool) -> int:
    if resume:
        return train.command("tiny", settings=list(SETTINGS), resume=True, out=root)
    return evaluate.command(root, part="validation")


def problem(root: Path, straight: Path, resume: bool, log: Path) -> str | None:
    """What was wrong with how a command took a damaged run."""

    def work() -> None:
        raise SystemExit(command(root, resume))

    code = ended(fork_code(work, log), 300)
    text = log.read_text(errors="replace")
    if "Traceback" in text or code not in (0, 1):
        return f"ended with {code}: {text.strip()[-300:]}"
    if code == 1 and "error: " not in text and "NOT what the run logged" not in text:
        return f"ended with 1 and said {text.strip()[-300:]!r}"
    return difference(root, straight) if resume and code == 0 else None


def fork_code(work: Callable[[], None], log: Path) -> int:
    """Like `fork`, but a SystemExit decides the exit code and a traceback is printed."""

    def run() -> None:
        try:
            work()
        except SystemExit as error:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(int(error.code or 0))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)

    return fork(run, log)


class Job(NamedTuple):
    kind: str
    resume: bool
    number: int
    seed: int
    root: Path


def one(job: Job) -> str | None:
    """Damages a copy of the run without a fault; what went wrong then."""
    chance, out = random.Random(f"{job.seed}/{job.kind}/{job.number}"), job.root / f"run-{job.resume}-{job.number}"
    shutil.copytree(job.root / "straight", out)
    told = damage(out, chance)
    if job.resume and chance.random() < 0.7:  # most often before the run ended
        (out / "result.json").is_file() and (out / "result.json").unlink()
    actual = problem(out, job.root / "straight", job.resume, out.with_suffix(".log"))
    shutil.rmtree(out)
    return None if actual is None else f"{job.kind}, try {job.number} of seed {job.seed} ({told}): {actual}"


def torture(scale: float, seed: int) -> list[Tally]:
    """`train --resume` and `evaluate` on damaged runs."""
    with work_folder(in_memory=True) as name:
        root = Path(name)
        straight_run(root / "straight")
        tallies = []
        for kind, resume in (("resume of a damaged run", True), ("evaluate of a damaged run", False)):
            tally = Tally(kind)
            for actual in shared_out(
                one, [Job(kind, resume, i, seed, root) for i in range(max(1, round(TRIES * scale)))]
            ):
                tally.count(actual)
            tallies.append(tally)
            tally.say()
        return tallies

"""Runs on a small disk that fills up at a random moment; with free space again they must continue exactly.

The disk is a tmpfs, where mounting is allowed. Elsewhere the size of a file is limited, which the system refuses in the
same way and which needs no rights.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run.training import train
from torture.small_run import difference, ended, finish, fork, recipe, straight_run, work_folder
from torture.tally import Tally
from torture.workers import shared_out

TRIES = 20


@contextmanager
def small_disk(where: Path, size: int) -> Iterator[bool]:
    """A tmpfs of ``size`` bytes at ``where``; False if it may not be mounted."""
    where.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], capture_output=True)
        mounted = done.returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(where)], check=True, capture_output=True)
        shutil.rmtree(where, ignore_errors=True)


def fill(path: Path, leave: int) -> None:
    """Fills the disk of ``path`` up to ``leave`` bytes."""
    free = shutil.disk_usage(path.parent).free
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - leave))


def limited_files(out: Path, size: int) -> None:
    """A run that may write no file above ``size`` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    train(recipe(), RunFolder(out), resume=True)


class Job(NamedTuple):
    """One try; duration and largest (size of a checkpoint) are those of the run without a fault."""

    number: int
    seed: int
    root: Path
    duration: float
    largest: int


class Outcome(NamedTuple):
    mounted: bool
    hit: bool
    problem: str | None


def one(job: Job) -> Outcome:
    """Fills the disk while a run writes on it, makes room, resumes; what went wrong."""
    chance, largest = random.Random(f"{job.seed}/full disk/{job.number}"), job.largest
    root, log = job.root / f"disk{job.number}", job.root / f"log{job.number}"
    with small_disk(root, 12 * largest + 2_000_000) as mounted:
        out, filler = root / "run", root / "filler"
        out.mkdir()
        if mounted:
            pid = fork(lambda: train(recipe(), RunFolder(out), resume=True), log)
            time.sleep(chance.uniform(0, job.duration))
            with suppress(OSError):  # the run may take the last bytes first
                fill(filler, chance.randrange(2 * largest))
            code = ended(pid)
            filler.unlink(missing_ok=True)
        else:
            code = ended(fork(lambda: limited_files(out, chance.randrange(500, largest)), log))
        printed = log.read_text(errors="replace").strip().splitlines()
        reference = ("CheckpointError: ", "OSError: ", "RunError: ")
        if code != 0 and not (printed and printed[-1].startswith(reference)):
            return Outcome(mounted, True, f"ended with {code}: {printed[-1:] or 'nothing printed'}")
        return Outcome(mounted, code != 0, finish(out) or difference(out, job.root / "straight"))


def torture(scale: float, seed: int) -> list[Tally]:
    """Full disks."""
    with work_folder() as name:
        root = Path(name)
        duration = straight_run(root / "straight")
        largest = (root / "straight" / "checkpoints" / "last.ckpt").stat().st_size
        jobs = [Job(number, seed, root, duration, largest) for number in range(max(1, round(TRIES * scale)))]
        tally, outcomes = Tally("full disk"), list(shared_out(one, jobs))
        for number, outcome in enumerate(outcomes):
            text = f"full disk, try {number} of seed {seed}: {outcome.problem}"
            tally.count(None if outcome.problem is None else text)
        how = "" if outcomes[0].mounted else "; no right to mount: limited files instead"
        tally.note = f"stopped {sum(outcome.hit for outcome in outcomes)} times{how}"
    tally.say()
    return [tally]

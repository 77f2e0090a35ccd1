"""Runs that are killed or signalled at random moments, and inside the writing of files and the final evaluation.

Every one is resumed to its end, which must be bit for bit that of the run without a fault.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.disk.sealed import SealedWriter
from steadyspike.train.files import atomic
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run import conclusion, evaluation
from steadyspike.train.run.training import train
from torture.small_run import difference, ended, finish, fork, recipe, straight_run, work_folder
from torture.tally import Tally
from torture.workers import shared_out

Places = tuple[tuple[Any, str], ...]  # owner of a function, and its name


def disk() -> Places:
    """What writes files and makes them last."""
    return (os, "fsync"), (os, "replace"), (os, "link"), (SealedWriter, "write"), (atomic, "sync_folder")


def final_evaluation() -> Places:
    """From the final weights to the end of the test. The loop has its own names of what evaluates between epochs."""
    return (
        (conclusion, "save_weights"), (conclusion, "load_weights"), (conclusion, "evaluate_part"),
        (evaluation, "part_sums"), (evaluation, "evaluating"), (evaluation, "autocast"),
    )  # fmt: skip


PLACES: dict[str, Callable[[], Places]] = {"writing": disk, "the final evaluation": final_evaluation}
SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
# kind of fault: tries
FAULTS = {
    "kill -9 at any moment": 20,
    "kill -9 inside writing": 30,
    "kill -9 inside the final evaluation": 12,
    "SIGTERM at any moment": 10,
    "SIGINT at any moment": 10,
}


def counting(places: Places, at: Callable[[int, bool], None]) -> None:
    """From now on ``at(number, after)`` is called before and after the ``number``-th call of one of ``places``."""
    done = [0]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            done[0] += 1
            number = done[0]
            at(number, False)
            result = original(*args, **kwargs)
            at(number, True)
            return result

        return call

    for owner, name in places:
        setattr(owner, name, wrap(getattr(owner, name)))


def calls(out: Path, where: str) -> int:
    """How often a run without a fault calls the places of ``where``."""
    count = out / "calls"

    def work() -> None:
        counting(PLACES[where](), lambda number, after: count.write_text(str(number)) and None)
        train(recipe(), RunFolder(out))

    out.mkdir()
    if (code := ended(fork(work, out / "log"), 300)) != 0:
        raise RuntimeError(f"the run without a fault ended with {code}")
    return int(count.read_text())


def resumed(out: Path) -> None:
    train(recipe(), RunFolder(out), resume=True)


def was_interrupted(out: Path) -> bool:
    """Returns True if a run records that a signal stopped it."""
    folder = RunFolder(out)
    return folder.intact("result.json") and folder.read_json("result.json")["status"] == "interrupted"


def at_any_moment(out: Path, chance: random.Random, duration: float, number: int) -> tuple[str, int]:
    """Kills or signals the run up to three times; when, and how many hit it before its end."""
    told, hits = [], 0
    for _ in range(chance.randint(1, 3)):
        moment = chance.uniform(0, duration)
        pid = fork(lambda: resumed(out), out / "log")
        time.sleep(moment)
        os.kill(pid, number)
        hits += ended(pid) != 0 or was_interrupted(out)
        told.append(f"{moment:.3f} s")
    return ", ".join(told), hits


def inside(out: Path, chance: random.Random, where: str, most: int) -> tuple[str, int]:
    """Lets the run kill itself twice inside ``where``; at which of ``most`` calls, and how often it came that far."""
    told, hits = [], 0
    for _ in range(2):
        chosen = chance.randint(1, most), chance.random() < 0.5

        def kill(number: int, after: bool, chosen: tuple[int, bool] = chosen) -> None:
            if (number, after) == chosen:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(kill: Callable[[int, bool], None] = kill) -> None:
            counting(PLACES[where](), kill)
            resumed(out)

        hits += ended(fork(work, out / "log")) == -signal.SIGKILL
        told.append(f"call {chosen[0]} {'after' if chosen[1] else 'before'}")
    return ", ".join(told), hits


class Job(NamedTuple):
    """One try; duration and calls are those of the run without a fault."""

    kind: str
    number: int
    seed: int
    root: Path
    duration: float
    calls: dict[str, int]


def one(job: Job) -> tuple[int, str | None]:
    """How many faults hit the run, and what went wrong."""
    chance, out = random.Random(f"{job.seed}/{job.kind}/{job.number}"), job.root / f"{job.kind}-{job.number}"
    out.mkdir()
    how, _, where = job.kind.partition(" inside ")
    if where:
        told, hits = inside(out, chance, where, job.calls[where])
    else:
        told, hits = at_any_moment(out, chance, job.duration, SIGNALS[how.removesuffix(" at any moment")])
    problem = finish(out) or difference(out, job.root / "straight")
    return hits, None if problem is None else f"{job.kind}, try {job.number} ({told}): {problem}"


def torture(scale: float, seed: int) -> list[Tally]:
    """Kills and signals."""
    with work_folder(in_memory=True) as name:
        root = Path(name)
        duration = straight_run(root / "straight")
        actual = {where: calls(root / where, where) for where in PLACES}
        job = partial(Job, seed=seed, root=root, duration=duration, calls=actual)
        tallies = []
        for kind, tries in FAULTS.items():
            tally, hits = Tally(kind), 0
            for hit, problem in shared_out(one, [job(kind, number) for number in range(max(1, round(tries * scale)))]):
                tally.count(problem)
                hits += hit
            tally.note = f"stopped {hits} times"
            tallies.append(tally)
            tally.say()
        return tallies

"""Runs that are killed or signalled at random moments, and inside the writing of files and the final evaluation.

Every one is resumed to its end, which must be bit for bit that of the run without a fault.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyspike.disk.sealed import SealedWriter
from steadyspike.train.files import atomic
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run import conclusion, evaluation
from steadyspike.train.run.training import train
from torture.small_run import difference, ended, finish, fork, recipe, straight_run, work_folder
from torture.tally import Tally

# Where a process may kill itself, so that it is hit for certain: owner of the function, and its name.
DISK = ((os, "fsync"), (os, "replace"), (os, "link"), (SealedWriter, "write"), (atomic, "sync_folder"))
EVALUATION = ((evaluation, "add_scores"), (conclusion, "save_weights"), (conclusion, "load_weights"))


def killing(places: tuple[tuple[Any, str], ...], number: int, after: bool) -> None:
    """From now on the process kills itself at the ``number``-th call of one of ``places``, before or after it."""
    left = [number]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for owner, name in places:
        setattr(owner, name, wrap(getattr(owner, name)))


def resumed(out: Path) -> None:
    train(recipe(), RunFolder(out), resume=True)


def at_any_moment(out: Path, chance: random.Random, duration: float, number: int) -> str:
    """Kills or signals the run up to three times; returns when."""
    told = []
    for _ in range(chance.randint(1, 3)):
        moment = chance.uniform(0, duration)
        pid = fork(lambda: resumed(out), out / "log")
        time.sleep(moment)
        os.kill(pid, number)
        ended(pid)
        told.append(f"{moment:.3f} s")
    return ", ".join(told)


def inside(out: Path, chance: random.Random, places: tuple[tuple[Any, str], ...], most: int) -> str:
    """Lets the run kill itself inside one of ``places``, twice; returns at which calls."""
    told = []
    for _ in range(2):
        number, after = chance.randint(1, most), chance.random() < 0.5

        def work(number: int = number, after: bool = after) -> None:
            killing(places, number, after)
            resumed(out)

        ended(fork(work, out / "log"))
        told.append(f"call {number} {'after' if after else 'before'}")
    return ", ".join(told)


def torture(scale: float, seed: int) -> list[Tally]:
    """Kills and signals."""
    with work_folder() as name:
        root = Path(name)
        duration = straight_run(root / "straight")
        faults: dict[str, tuple[int, Callable[[Path, random.Random], str]]] = {
            "kill -9 at any moment": (20, lambda out, chance: at_any_moment(out, chance, duration, signal.SIGKILL)),
            "kill -9 inside writing": (30, lambda out, chance: inside(out, chance, DISK, 150)),
            "kill -9 in the final evaluation": (8, lambda out, chance: inside(out, chance, EVALUATION, 4)),
            "SIGTERM at any moment": (8, lambda out, chance: at_any_moment(out, chance, duration, signal.SIGTERM)),
            "SIGINT at any moment": (8, lambda out, chance: at_any_moment(out, chance, duration, signal.SIGINT)),
        }
        tallies = []
        for kind, (tries, fault) in faults.items():
            tally = Tally(kind)
            for number in range(max(1, round(tries * scale))):
                chance, out = random.Random(f"{seed}/{kind}/{number}"), root / "run"
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir()
                told = fault(out, chance)
                problem = finish(out) or difference(out, root / "straight")
                tally.count(None if problem is None else f"{kind}, try {number} ({told}): {problem}")
            tallies.append(tally)
            tally.say()
        return tallies

"""Runs of several processes in which one is killed: the others end, the command reports it, and a resume goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from torture.small_run import SETTINGS, difference, work_folder
from torture.tally import Tally

TRIES = 3  # of each launcher: every start imports torch in several processes
_LONGER = ("schedule.epochs=6",)


def command(launcher: str, out: Path, resume: bool) -> list[str]:
    settings = [text for setting in (*SETTINGS, *_LONGER) for text in ("--set", setting)]
    tail = ["train", "tiny", *settings, "--out", str(out), *(["--resume"] if resume else [])]
    if launcher == "--devices":
        return [sys.executable, "-m", "steadyspike.cli", *tail, "--devices", "2"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*start, "-m", "steadyspike.cli", *tail]


def run(launcher: str, out: Path, resume: bool = False, seconds: float = 600) -> tuple[int, str]:
    """Exit code and the last words."""
    with open(out.with_suffix(".log"), "wb") as log:
        done = subprocess.run(command(launcher, out, resume), stdout=log, stderr=log, timeout=seconds)
    return done.returncode, out.with_suffix(".log").read_text(errors="replace")


def ranks(parent: int) -> list[int]:
    """Processes below ``parent`` that train: those with a rank in their environment."""
    actual: list[int] = []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    below = list(children.get(parent, []))
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        try:
            if b"\0LOCAL_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                actual.append(pid)
        except OSError:
            continue
    return sorted(actual)


def one(launcher: str, out: Path, straight: Path, chance: random.Random) -> str | None:
    """Kills one process when some rows of steps.csv are there; what went wrong."""
    rows = chance.randint(1, 20)
    with open(out.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(command(launcher, out, False), stdout=log, stderr=log)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and process.poll() is None:
            table = out / "steps.csv"
            if table.exists() and table.read_bytes().count(b"\n") > rows:
                break
            time.sleep(0.01)
        victims = ranks(process.pid)
        if victims and process.poll() is None:
            os.kill(chance.choice(victims), signal.SIGKILL)
        try:
            code = process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"did not end within 300 s after a process was killed at row {rows}"
    if victims and code == 0 and not (out / "result.json").exists():
        return f"ended with 0 although a process was killed at row {rows}"
    code, printed = run(launcher, out, resume=True)
    if code != 0:
        return f"the resumed run ended with {code}: {printed.strip()[-300:]}"
    return difference(out, straight)


def torture(scale: float, seed: int) -> list[Tally]:
    """Killed ranks under --devices and under torchrun."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tallies = []
    with work_folder() as name:
        root = Path(name)
        for launcher in ("--devices", "torchrun"):
            straight = root / f"straight-{launcher.strip('-')}"
            code, printed = run(launcher, straight)
            tally = Tally(f"killed rank under {launcher}")
            if code != 0:
                tally.count(f"the run without a fault ended with {code}: {printed.strip()[-300:]}")
            else:
                for number in range(max(1, round(TRIES * scale))):
                    chance = random.Random(f"{seed}/{launcher}/{number}")
                    actual = one(launcher, root / f"{launcher.strip('-')}-{number}", straight, chance)
                    tally.count(None if actual is None else f"{launcher}, try {number} of seed {seed}: {actual}")
            tallies.append(tally)
            tally.say()
    return tallies

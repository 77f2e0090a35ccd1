"""A run small enough to be tortured many times, and processes that are forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import Recipe, load_recipe
from steadyspike.train.run.training import train

SETTINGS = (
    "train.save_every=2", "train.log_every=1", "train.ema=0.9", "model.options.dropout=0.3", "neuron.threshold=0.3",
    "data.batch_size=32", "data.eval_batch_size=64", "data.train_samples=160", "schedule.epochs=2",
)  # fmt: skip
SAME = ("metrics.csv", "layers.csv", "steps.csv", "health.csv", "weights.safetensors")


def recipe(*settings: str) -> Recipe:
    return load_recipe("tiny", [*SETTINGS, *settings])


def fork(work: Callable[[], Any], log: Path | None = None) -> int:
    """A process that does ``work`` and ends with 0, or with 1 and its error in ``log``; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        if log is not None:
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 1), os.dup2(target, 2)
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def ended(pid: int, seconds: float = 120.0) -> int:
    """How a process ended: its exit code, or minus the signal; one that does not end is killed: -1000."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        actual, status = os.waitpid(pid, os.WNOHANG)
        if actual:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1000


def straight_run(out: Path, *settings: str) -> float:
    """Trains without a fault; returns the seconds it took."""
    out.mkdir(parents=True)
    started = time.monotonic()
    if (code := ended(fork(lambda: train(recipe(*settings), RunFolder(out)), out / "log"), 300)) != 0:
        raise RuntimeError(f"the run without a fault ended with {code}: {(out / 'log').read_text()[-500:]}")
    return time.monotonic() - started


def finish(out: Path, *settings: str) -> str | None:
    """Continues a run to its end; what went wrong, if something did."""
    code = ended(fork(lambda: train(recipe(*settings), RunFolder(out), resume=True), out / "log"), 300)
    if code == 0:
        return None
    return f"the resumed run ended with {code}: {(out / 'log').read_text(errors='replace').strip()[-300:]}"


def difference(out: Path, straight: Path) -> str | None:
    """The first file in which a run differs from the one without a fault."""
    for name in SAME:
        if (out / name).read_bytes() != (straight / name).read_bytes():
            return f"{name} differs"
    mine, other = (RunFolder(root).read_json("result.json")["test"] for root in (out, straight))
    return None if mine == other else f"the test result is {mine}, not {other}"


def work_folder(in_memory: bool = False) -> tempfile.TemporaryDirectory[str]:
    """in_memory: on a disk in memory, if there is one, for files that are written a hundred thousand times."""
    fast = in_memory and os.access("/dev/shm", os.W_OK)
    return tempfile.TemporaryDirectory(prefix="torture-", dir="/dev/shm" if fast else None)

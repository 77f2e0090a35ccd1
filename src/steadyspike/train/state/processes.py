"""The processes of a run: this one among them, values that all of them share, and several started by torchrun."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from steadyspike.nn.sync import world_size
from steadyspike.train.files.folder import RunError


@dataclass(frozen=True)
class Processes:
    """rank: of this process, from 0
    count: of all processes on all machines
    local: its number on this machine
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def of_torchrun(cls) -> Processes:
        """Returns the values that torchrun has put into the environment."""
        rank, count, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, count, local)

    @property
    def first(self) -> bool:
        """Returns whether this process writes the files of the run."""
        return self.rank == 0


def join_group(processes: Processes, device: torch.device) -> None:
    """Connects the processes of a run (gloo on CPUs, NCCL on GPUs), by MASTER_ADDR and MASTER_PORT."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if processes.count > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=processes.rank, world_size=processes.count)


def leave_group() -> None:
    """Ends the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        # A thread of gloo frees the tensors of the last sum after the sum has returned, and needs Python's lock for it.
        # If Python ends before that, the thread aborts the process, and torchrun then stops all others.
        time.sleep(0.2)


def of_all(value: Any) -> list[Any]:
    """Returns ``value`` of every process, in the order of their ranks."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def least(value: int, device: torch.device) -> int:
    """Returns the smallest ``value`` of any process."""
    if world_size() == 1:
        return value
    smallest = torch.tensor(value, device=device)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return int(smallest)


_PARENT = "STEADYSPIKE_PARENT"  # the process that called `launch`
_PATIENCE = "120"  # seconds that processes have to write their checkpoint after a signal, before they are killed


def under_torchrun() -> bool:
    """Returns True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux); otherwise it would train on and keep the folder's lock.

    It ends at once if the command that called `launch` has already ended, because torchrun may lose processes that it
    is starting when a signal comes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
            raise SystemExit(1)


def launch(devices: int, arguments: list[str], logs: Path) -> int | None:
    """Runs ``steadyspike ARGUMENTS`` in ``devices`` processes to their end; returns the number of a signal that came.

    The first process writes to the screen, the others to ``logs``. A signal is passed on to all of them. Raises
    RunError with the last message of the process that died first.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    os.environ[_PARENT] = str(os.getpid())
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _PATIENCE)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logs.mkdir(parents=True, exist_ok=True)
    redirects = ",".join(f"{rank}:{2 if rank == 0 else 3}" for rank in range(devices))  # 2: errors, 3: all output
    options = [
        "--nproc-per-node", str(devices), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "--rdzv-id", "run", "--local-addr", "127.0.0.1", "--log-dir", str(logs), "--redirects", redirects,
    ]  # fmt: skip
    try:
        run(parse_args([*options, "-m", "steadyspike.cli", *arguments]))
    except SignalException as stop:
        return int(stop.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RunError(how_it_died(rank, devices, failure.exitcode, logs)) from None
    return None


def how_it_died(rank: int, count: int, code: int, logs: Path) -> str:
    """Returns one line about a process that ended before the run did."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    files = sorted(logs.glob(f"*/attempt_0/{rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    lines = [line for path in files[-1:] for line in path.read_text(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    killed = code == -9  # SIGKILL, a name that Windows lacks
    memory = "; unless it was killed on purpose, memory was probably full" if killed else ""
    return f"process {rank} of {count} died ({how}){last}{memory} (see {files[-1] if files else logs})"

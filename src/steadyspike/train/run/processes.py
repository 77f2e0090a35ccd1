"""Several processes of one run on this machine, started and monitored by torchrun."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

from steadyspike.train.files.folder import RunError

_PARENT = "STEADYSPIKE_PARENT"  # the process that called `launch`
_PATIENCE = "120"  # seconds that processes have to write their checkpoint after a signal, before they are killed


def under_torchrun() -> bool:
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def die_with_parent() -> None:
    """On Linux, ends this process with its parent; otherwise it would continue to train and keep the folder's lock.

    Ends at once if the command that called `launch` has already ended: torchrun may lose processes that it is starting
    when a signal comes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
            raise SystemExit(1)


def launch(devices: int, arguments: list[str], logs: Path) -> int | None:
    """Runs ``steadyspike ARGUMENTS`` in ``devices`` processes to their end; returns the number of a signal that came.

    The first process writes to the screen, the others to ``logs``. A signal is passed on to all of them. RunError with
    the last message of the process that died first.
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
    """One line about a process that ended before the run did."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    files = sorted(logs.glob(f"*/attempt_0/{rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    lines = [line for path in files[-1:] for line in path.read_text(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    killed = code == -9  # SIGKILL, a name that Windows lacks
    memory = "; unless it was killed on purpose, memory was probably full" if killed else ""
    return f"process {rank} of {count} died ({how}){last}{memory} (see {files[-1] if files else logs})"

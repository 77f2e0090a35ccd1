"""Several processes of one run on this machine: start them, pass signals on, and end all when one dies."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.session.signals import WATCHED, Signals, exit_code

_STOPPED = {0, *(exit_code(number) for number in WATCHED)}  # how processes end that a signal stopped


def under_torchrun() -> bool:
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """On Linux, ends this process with its parent; it would otherwise go on training and hold the folder's lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _environment(rank: int, devices: int, port: int) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // devices)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(devices),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def launch(
    folder: RunFolder,
    devices: int,
    data_dir: Path | None,
    resume: bool,
    signals: Signals,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Runs ``devices`` processes of the run in ``folder`` to their end; RunError with the message of the one that died.

    The first process writes to the screen; the others write to logs/process-N.log in the run folder. meanwhile: called
    again and again while they run.
    """
    command = [sys.executable, "-m", "steadyspike.train.run.rank", str(folder.root)]
    command += ["--data-dir", str(data_dir)] if data_dir is not None else []
    command += ["--resume"] if resume else []
    port = free_port()
    environments = [_environment(rank, devices, port) for rank in range(devices)]
    supervise(command, environments, folder.root / "logs", signals=signals, meanwhile=meanwhile)


def supervise(
    command: list[str],
    environments: list[dict[str, str]],
    logs: Path,
    grace: float = 15.0,
    signals: Signals | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Starts one process per environment, all with the same command, and waits until all have ended.

    The first process writes to this one's standard output. SIGTERM and SIGINT are passed on once, as SIGTERM. When a
    process dies, the others get ``grace`` seconds to end by themselves, and RunError is raised unless a signal was the
    reason.
    """
    logs.mkdir(parents=True, exist_ok=True)
    children: list[subprocess.Popen[bytes]] = []
    files: list[IO[bytes]] = []

    def kill() -> None:
        for child in children:
            if child.poll() is None:
                child.kill()

    with signals or Signals() as signals:
        signals.wait("in training")
        signals.at_once.append(kill)
        try:
            for rank, environment in enumerate(environments):
                files.append(open(logs / f"process-{rank}.log", "wb"))  # noqa: SIM115
                children.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdout=None if rank == 0 else files[-1],
                        stderr=files[-1],
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                )
            _wait(children, signals, logs, grace, meanwhile)
        finally:
            kill()
            for child in children:
                child.wait()
            for file in files:
                file.close()


def _wait(
    children: list[subprocess.Popen[bytes]], signals: Signals, logs: Path, grace: float, meanwhile: Callable[[], object]
) -> None:
    passed_on = False
    while any(child.poll() is None for child in children):
        if signals() and not passed_on:
            passed_on = True
            for child in children:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
        if any(child.poll() not in (None, 0) for child in children):
            break
        meanwhile()
        time.sleep(0.05)
    dead = [rank for rank, child in enumerate(children) if child.poll() not in (None, 0)]
    if not dead:
        return
    # The others see a broken connection and end, too; the message is about the one that died first.
    deadline = time.monotonic() + grace
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    if signals() or all(child.poll() in _STOPPED for child in children):
        return
    first = dead[0]
    raise RunError(_how_it_died(first, len(children), children[first].returncode, logs / f"process-{first}.log"))


def _how_it_died(rank: int, count: int, code: int, log: Path) -> str:
    """One line about a process that ended before the run did."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    memory = "; if nobody killed it, memory was probably full" if code == -signal.SIGKILL else ""
    return f"process {rank} of {count} died ({how}){last}{memory} (see {log})"

"""Runs a function in a forked process under a limit of memory and time, and returns what it cost."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from json import dumps, loads
from typing import NoReturn

from steadyspike.data.errors import DataError

MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """kind: "returned", "refused" (a DataError), "raised" (anything else) or "killed" (by a limit or a crash).

    text: the error's message, or the signal. grown: bytes by which the process grew at most. seconds: of its CPU.
    """

    kind: str
    text: str
    grown: int
    seconds: float


def peak() -> int:
    """The most memory this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak() -> None:
    """Starts counting the peak again, if the system can (Linux); a forked process inherits its parent's."""
    try:
        with open("/proc/self/clear_refs", "w") as handle:
            handle.write("5")
    except OSError:
        pass


def held() -> int:
    """The memory this process holds at most since `reset_peak`, in bytes."""
    try:
        with open("/proc/self/status") as handle:
            line = next(line for line in handle if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return peak()


def cap(memory: int) -> None:
    """Let this process take at most `memory` bytes more than it has: beyond it, allocations fail."""
    try:
        with open("/proc/self/statm") as handle:
            now = int(handle.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))


def limited(action: Callable[[], object], memory: int = 1024 * MIB, seconds: float = 30) -> Outcome:
    """What becomes of `action()` in a process that may grow by `memory` bytes and run for `seconds`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _report(action, memory, write)
    os.close(write)
    printed, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([read], [], [], left)[0]:
        if not (part := os.read(read, 1 << 16)):
            break
        printed += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if printed and os.WIFEXITED(status):
        return Outcome(**loads(printed))
    if time.monotonic() >= end:
        return Outcome("killed", f"after {seconds} seconds", 0, seconds)
    return Outcome("killed", f"by signal {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'none'}", 0, 0.0)


def judged(action: Callable[[], object]) -> tuple[str, str]:
    """(kind, text) of an `Outcome` for what `action` does, in this process."""
    try:
        action()
    except DataError as error:
        return "refused", str(error)
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {str(error)[:300]}"
    return "returned", ""


def _report(action: Callable[[], object], memory: int, write: int) -> NoReturn:
    try:
        reset_peak()
        cap(memory)
        before, start = held(), time.process_time()
        kind, text = judged(action)
        outcome = Outcome(kind, text, max(0, held() - before), time.process_time() - start)
        os.write(write, dumps(asdict(outcome)).encode())
    finally:
        os._exit(0)

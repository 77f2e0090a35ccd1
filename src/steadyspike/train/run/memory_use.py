"""How much memory a run needs, as the system counts it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from steadyspike.train.state.session import Session


def size(count: float) -> str:
    """A number of bytes in words: ``"84 MB"``, ``"1.5 GB"``."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def memory_held() -> tuple[int, int]:
    """(bytes of memory that this process holds now, the most that it held so far).

    Zeros if the system does not report it.
    """
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return 0, 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most


def most_memory() -> dict[str, int]:
    """Returns the most bytes that this process held so far, and on its GPU; as far as the system reports it."""
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return {name: count for name, count in (("process", memory_held()[1]), ("GPU", gpu)) if count}


def memory_line(session: Session, before: int) -> str:
    """The memory that must be free for this run, estimated after its first steps.

    before: bytes that the process held before the first step.
    """
    each = " for each process" if session.processes.count > 1 else ""
    most = max(before, memory_held()[1])
    if session.device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(session.device)
        return f"memory: about {size(reserved)} on the GPU and {size(most)} must be free in addition{each}"
    return (
        f"memory: about {size(most)} must be free{each}: {size(before)} held before training, "
        f"{size(most - before)} more in the first steps"
    )

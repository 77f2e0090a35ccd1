"""How much memory a run needs: an estimate of a step, and what the process was seen to hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from steadyspike.train.state.session import Session


def size(count: float) -> str:
    """A number of bytes in words: ``"84 MB"``, ``"1.5 GB"``."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def memory_held() -> tuple[int, int]:
    """(bytes of memory that this process holds now, the most that it held so far); zeros if the system does not say."""
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


def mean_of(out: Any) -> torch.Tensor:
    """A scalar of a network's output, which is one tensor or a list of maps."""
    return out.mean() if isinstance(out, torch.Tensor) else torch.stack([one.mean() for one in out]).sum()


def most_memory() -> dict[str, int]:
    """Returns the most bytes that this process held so far, and on its GPU; without what the system does not report."""
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return {name: count for name, count in (("process", memory_held()[1]), ("GPU", gpu)) if count}


def memory_line(session: Session, batch: Any, before: int) -> str:
    """What must be free for this run, said after its first steps.

    before: bytes that the process held before the first step. The need is that plus the estimate of a step, or the
    most that the process held so far, if that is more.
    """
    from steadyspike.nn.memory.estimate import memory_estimate

    taps = {name: layer.taps for name, layer in session.watch.layers.items()}
    try:
        for layer in session.watch.layers.values():
            layer.taps = {}
        estimate = memory_estimate(session.task.model, batch[0], optimizer=session.recipe.optimizer.name, loss=mean_of)
    except Exception as error:
        # The estimate is only informative: a network for which it fails must still train.
        return f"memory: no estimate ({type(error).__name__}: {error})"
    finally:
        for name, layer in session.watch.layers.items():
            layer.taps = taps[name]
    step = f"{size(estimate.peak)} for a step, of which {size(estimate.saved)} are kept for the backward pass"
    each = " for each process" if session.processes.count > 1 else ""
    most = memory_held()[1]
    if session.device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(session.device)
        need = max(estimate.peak, reserved)
        return f"memory: about {size(need)} on the GPU and {size(most)} beside it must be free{each} ({step})"
    need = max(before + estimate.peak, most)
    return f"memory: about {size(need)} must be free{each}: {size(before)} held before training, {step}"

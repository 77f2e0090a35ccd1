"""A function in two gloo processes that train together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from steadyspike.train.state.processes import leave_group


def in_two_processes(function: Callable[[int], Any], folder: Path) -> list[Any]:
    """Returns ``function(rank)`` of both processes; it must be a function of a module, and ``folder`` must be empty."""
    mp.spawn(_process, args=(function, folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _process(rank: int, function: Callable[[int], Any], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(function(rank), folder / f"{rank}.pt")
    leave_group()

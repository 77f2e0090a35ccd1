"""This process among those of a run: its number, its device, and values that all of them share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from steadyspike.nn.sync import world_size


@dataclass(frozen=True)
class Processes:
    """rank: of this process, from 0; count: of all processes on all machines; local: its number on this machine."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def of_torchrun(cls) -> Processes:
        """The values that torchrun put into the environment."""
        rank, count, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, count, local)

    @property
    def first(self) -> bool:
        """Whether this process writes the files of the run."""
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


def of_all(value: Any) -> list[Any]:
    """``value`` of every process, in the order of their ranks."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def least(value: int, device: torch.device) -> int:
    """The smallest ``value`` of any process."""
    if world_size() == 1:
        return value
    smallest = torch.tensor(value, device=device)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return int(smallest)

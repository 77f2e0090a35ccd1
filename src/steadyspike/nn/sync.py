"""Sums over all processes of a group, on any backend (gloo on CPU, nccl on GPU)."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

_AVAILABLE = dist.is_available()


class Group:
    """Holds a module's process group (None: all processes). Copies share it; pickles do not contain it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, object]) -> Group:
        return self

    def __reduce__(self) -> tuple[type[Group], tuple[()]]:
        return Group, ()


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Returns the number of processes; 1 without distributed training."""
    if not (_AVAILABLE and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def summed(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns ``x`` summed over all processes, without gradient; ``x`` itself if there is only one process."""
    if world_size(group) == 1:
        return x
    x = x.detach().clone()
    dist.all_reduce(x, group=group)
    return x

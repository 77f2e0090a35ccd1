"""Sums over all processes of a group, on any backend (gloo on CPU, nccl on GPU)."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


class Group:
    """A process group on a module: shared by copies of the module, left behind by pickles (None there: all)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, object]) -> Group:
        return self

    def __reduce__(self) -> tuple[type[Group], tuple[()]]:
        return Group, ()


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of processes, 1 where there is no process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def summed(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """``x`` summed over all processes, without gradient; ``x`` itself where there is only one."""
    if world_size(group) == 1:
        return x
    x = x.detach().clone()
    dist.all_reduce(x, group=group)
    return x

"""Sums over all processes of a group, on any backend (gloo on CPU, nccl on GPU)."""

from __future__ import annotations

import torch
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


class _SumOverProcesses(torch.autograd.Function):
    """A sum over processes. Its gradient is also such a sum, because every process uses the result."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.group = group
        total = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_over_processes(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """``x`` summed over all processes of ``group``, with gradient, on any backend; ``x`` itself for one process."""
    return x if world_size(group) == 1 else _SumOverProcesses.apply(x, group)

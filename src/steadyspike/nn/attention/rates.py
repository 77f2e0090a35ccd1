"""`RunningRate`: a running mean of the firing rate of each attention head, which SpikingResformer uses for scaling."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steadyspike.nn.checkpoint import recall, recomputing, store
from steadyspike.nn.snapshot import snapshot
from steadyspike.nn.sync import Group, sum_over_processes

# The smallest rate that is returned: dividing by a rate of 0 would give infinity, and 0 * inf is NaN.
LEAST_RATE = 1e-4


class RunningRate(nn.Module):
    """The running firing rate of each head, [heads], without gradient: ``rate(out)`` for ``out`` [T, B, heads, ...].

    A spike is an output that is not 0, so V*S and S give the same rate. A training forward first updates the mean and
    then returns it, as SpikingResformer's code does. The first training forward sets it. Evaluation does not change it;
    before any training forward the rate is 1. The returned rate is at least `LEAST_RATE`. The buffers ``rate`` and
    ``batches`` are saved; spikes are summed over all processes of ``group``. A forward that activation checkpointing
    recomputes changes nothing and gets the rate of its first run.

    momentum: weight of the new batch; 0.001 in SpikingResformer
    """

    rate: Tensor
    batches: Tensor

    def __init__(
        self, heads: int, momentum: float = 1e-3, sync: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum is the weight of the new batch and must be in (0, 1]; got {momentum}")
        self.momentum, self.sync, self.group = momentum, sync, Group(group)
        self.register_buffer("rate", torch.zeros(heads))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, out: Tensor) -> Tensor:
        if not self.training:
            return self._usable(self.rate.clone(), self.batches)
        if recomputing():
            return recall(self)
        rate = self._usable(self._move(out), self.batches)
        store(self, rate)
        return rate

    @torch.no_grad()
    def _move(self, out: Tensor) -> Tensor:
        old, first = snapshot(self.rate), snapshot(self.batches) == 0
        heads = out.shape[2]
        fired = (out != 0).transpose(0, 2).flatten(1).sum(1, dtype=old.dtype)
        size = torch.full((1,), out.numel() / heads, dtype=old.dtype, device=out.device)
        totals = torch.cat([fired, size])
        totals = sum_over_processes(totals, self.group.group) if self.sync else totals
        batch = totals[:-1] / totals[-1]
        moved = torch.where(first, batch, old + self.momentum * (batch - old))
        self.rate.copy_(moved)
        self.batches.add_(1)
        return moved

    @staticmethod
    def _usable(rate: Tensor, batches: Tensor) -> Tensor:
        return torch.where(batches > 0, rate.clamp_min(LEAST_RATE), torch.ones_like(rate))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RunningRate:
        """Keeps the mean in float32 in a half-precision model, in which small updates would be rounded away."""
        rate = self.rate
        super()._apply(fn, recurse)
        if self.rate.dtype in (torch.float16, torch.bfloat16):
            self.rate = rate.to(self.rate.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.rate.numel()} heads, momentum={self.momentum}" + ("" if self.sync else ", sync=False")

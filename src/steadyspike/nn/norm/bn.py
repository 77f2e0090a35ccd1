"""Ordinary batch norm called at every time step, as PLIF's networks and most of the field do."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.perstep import step_norm
from steadyspike.nn.time import fold_time


class StepBN(TimeNorm):
    """One batch norm for all steps, statistics of each step on its own, on [T, B, C, ...].

    The running statistics move T times per training forward, so their effective momentum depends on T; evaluation uses
    the one running pair for every step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, C, ...] -> the same shape."""
        self.check_input(x)
        self.count_batch()
        if self.training:
            return step_norm(self, x)
        return fold_time(
            lambda y: F.batch_norm(y, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps), x
        )

"""Ordinary batch norm, called at every time step; PLIF's networks and most others use it."""

from __future__ import annotations

from torch import Tensor

from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.perstep import step_norm
from steadyspike.nn.norm.statistics import batch_norm
from steadyspike.nn.time import fold_time


class StepBN(TimeNorm):
    """One batch norm for all time steps of [T, B, C, ...]; each step is normalised by its own batch statistics.

    The running statistics are updated T times per training forward, so their effective momentum depends on T.
    Evaluation uses the same running statistics for every step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, C, ...] to the same shape."""
        self.check_input(x)
        self.count_batch()
        if self.training:
            return step_norm(self, x)
        parts = (self.running_mean, self.running_var), self.weight, self.bias
        return fold_time(lambda y: batch_norm(y, *parts, training=False, momentum=self.momentum, eps=self.eps), x)

"""Batch norm through time (Kim and Panda, 2021): a separate batch norm for every time step."""

from __future__ import annotations

from torch import Tensor

from steadyspike.nn.norm.base import NormOptions, StepNorm, Unpack
from steadyspike.nn.norm.perstep import step_norm


class BNTT(StepNorm):
    """A separate batch norm for every step of [T, B, C, ...], with mean and variance over (B, ...) of step t.

        y[t] = weight[t] * (x[t] - mean[t]) / sqrt(var[t] + eps)

    weight, running_mean, running_var: [T, C]. As in the authors' code there is no bias (``bias=True`` adds one) and eps
    is 1e-4.
    """

    def __init__(self, channels: int, timesteps: int, **options: Unpack[NormOptions]) -> None:
        published: NormOptions = {"eps": 1e-4, "bias": False}
        published.update(options)
        super().__init__(channels, timesteps, **published)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, C, ...] to the same shape."""
        self.check_input(x)
        self.count_batch()
        return step_norm(self, x)

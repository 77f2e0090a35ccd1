"""Threshold-dependent batch norm (Zheng et al., 2021): one set of statistics over time, batch and space."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.nn.norm.base import NormOptions, TimeNorm, Unpack
from steadyspike.nn.norm.statistics import batch_norm, move_running, normalise
from steadyspike.nn.time import fold_time

SCALINGS = ("none", "factor", "gamma")


class TDBN(TimeNorm):
    """Batch norm over [T, B, C, ...] with mean and variance over (T, B, ...) per channel.

        y = weight * f * (x - mean) / sqrt(var + eps) + bias

    scaling: ``"none"``: f = 1, as in the paper and its released code;
        ``"factor"``: f = alpha * threshold, a fixed factor, as Zheng et al. define it; ``"gamma"``: f = 1 and weight
        starts at alpha * threshold, as in SpikingJelly. The output at the start is then the same, but gradients have
        another scale, and weight decay has another effect.
    threshold: V of the neuron that follows. It is a constant here even if the neuron learns V; otherwise V would get a
        second gradient.
    alpha: 1, or 1/sqrt(2) if two branches are added
    """

    def __init__(
        self,
        channels: int,
        scaling: str = "none",
        threshold: float = 1.0,
        alpha: float = 1.0,
        **options: Unpack[NormOptions],
    ) -> None:
        super().__init__(channels, **options)
        if scaling not in SCALINGS:
            raise ValueError(f"unknown tdBN scaling {scaling!r}; known: {', '.join(SCALINGS)}")
        self.scaling = scaling
        self.factor = alpha * threshold if scaling == "factor" else 1.0
        if scaling == "gamma":
            torch.nn.init.constant_(self.weight, alpha * threshold)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, C, ...] to the same shape."""
        self.check_input(x)
        self.count_batch()
        weight = self.weight if self.factor == 1.0 else self.weight * self.factor
        if self.synchronises:
            return self._over_processes(x, weight)
        return fold_time(lambda folded: self._native(folded, weight), x)

    def _native(self, x: Tensor, weight: Tensor) -> Tensor:
        """Calls torch's own fused batch norm on [T*B, C, ...]."""
        parts = x, self.running(), weight, self.bias
        return batch_norm(*parts, training=self.training, momentum=self.momentum, eps=self.eps)

    def _over_processes(self, x: Tensor, weight: Tensor) -> Tensor:
        batch = self.batch_moments(x, [i for i in range(x.ndim) if i != 2])
        if self.tracks:
            move_running(self.running_mean, self.running_var, batch, self.momentum)
        return normalise(x, batch.mean, batch.var, self.eps, weight, self.bias)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.scaling == "none" else f"{text}, scaling={self.scaling!r}"

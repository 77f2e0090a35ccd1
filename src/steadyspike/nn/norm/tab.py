"""Temporal accumulated batch norm (Jiang et al., 2024): step t is normalised by the statistics of steps 1 to t."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.nn.norm.base import NormOptions, StepNorm, Unpack
from steadyspike.nn.norm.statistics import Moments, move_running, normalise


def accumulated(steps: Moments) -> Moments:
    """Returns the moments of steps 1..t for every t, from the moments [T, C] of single steps; n becomes [T, 1].

    The variance includes the variance between steps. The variance is merged step by step with Chan's formula, which
    stays accurate if the mean is much larger than the standard deviation.
    """
    mean, var = steps.mean[0], steps.var[0]
    means, variances = [mean], [var]
    for t in range(2, steps.mean.shape[0] + 1):
        delta = steps.mean[t - 1] - mean
        mean = mean + delta / t
        var = var + (steps.var[t - 1] - var + delta.square() * ((t - 1) / t)) / t
        means.append(mean)
        variances.append(var)
    seen = torch.arange(1, len(means) + 1, dtype=steps.n.dtype, device=steps.n.device)
    return Moments(torch.stack(means), torch.stack(variances), (seen * steps.n)[:, None])


class TAB(StepNorm):
    """Batch norm over [T, B, C, ...] with the statistics of steps 1 to t at step t.

        y[t] = p[t]^2 * (weight[t] * (x[t] - mean[1:t]) / sqrt(var[1:t] + eps) + bias[t])

    weight, bias, running_mean, running_var: [T, C]; p: [T], starts at 1. Gradients flow to earlier steps through the
    statistics. Evaluation uses the running statistics of step t.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("p",)

    def __init__(self, channels: int, timesteps: int, **options: Unpack[NormOptions]) -> None:
        super().__init__(channels, timesteps, **options)
        self.p = nn.Parameter(torch.ones(timesteps))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, C, ...] to the same shape."""
        self.check_input(x)
        self.count_batch()
        steps = x.shape[0]
        if self.training:
            single = self.batch_moments(x, [i for i in range(x.ndim) if i not in (0, 2)])
            batch = accumulated(single)
            if self.tracks:
                move_running(self.running_mean, self.running_var, batch, self.momentum)
            mean, var = batch.mean, batch.var
        else:
            mean, var = self.running_mean[:steps], self.running_var[:steps]
        importance = self.p[:steps, None].square()
        weight = self.weight[:steps] * importance
        bias = None if self.bias is None else self.bias[:steps] * importance
        return normalise(x, mean, var, self.eps, weight, bias)

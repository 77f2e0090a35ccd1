"""Batch mean and variance over chosen axes, of one process or of all processes, with gradients through both.

The moments of all processes are merged by the parallel-variance formula (Chan et al.) in float64, which avoids
differences of large sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from steadyspike.core.widest import widest
from steadyspike.nn.sync import sum_over_processes, world_size


class Moments(NamedTuple):
    """Mean and biased variance, in the shape of the remaining axes.

    n: number of elements averaged per value
    """

    mean: Tensor
    var: Tensor
    n: Tensor


def moments(x: Tensor, axes: Sequence[int], *, sync: bool = True, group: dist.ProcessGroup | None = None) -> Moments:
    """Returns mean and biased variance of ``x`` over ``axes`` in float32 or better, over all processes if ``sync``.

    A single value per channel has no variance and raises an error, as in torch's batch norm.
    """
    elements = math.prod([x.shape[axis] for axis in axes])  # a list: torch.compile does not accept a generator
    processes = world_size(group) if sync else 1
    if elements * processes < 2:
        raise ValueError(
            f"batch statistics need more than 1 value per channel, got shape {list(x.shape)}; use a larger batch"
        )
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(x, list(axes), correction=0)
    return merged_moments(mean, var, elements, sync=sync, group=group)


def merged_moments(
    mean: Tensor, var: Tensor, elements: int, *, sync: bool, group: dist.ProcessGroup | None = None
) -> Moments:
    """Returns the moments of ``elements`` elements of this process; of those of all processes if ``sync``."""
    # The number of elements is a tensor, because processes may have different batch sizes.
    n = torch.full((), float(elements), dtype=widest(mean.device), device=mean.device)
    if not sync or world_size(group) == 1:
        return Moments(mean, var, n)
    return _merged(Moments(mean.double(), var.double(), n), mean.dtype, group)


def _merged(local: Moments, dtype: torch.dtype, group: dist.ProcessGroup | None) -> Moments:
    """Merges this process's moments with those of all others."""
    # One exchange for the sums and the number of elements.
    sums = torch.cat([(local.mean * local.n).reshape(-1), local.n.reshape(1)])
    sums = sum_over_processes(sums, group)
    n = sums[-1].detach()
    mean = (sums[:-1] / n).view_as(local.mean)
    # Squares around the common mean (Chan et al.); sums of x^2 would lose digits if the mean is large.
    spread = sum_over_processes(local.n * (local.var + (local.mean - mean).square()), group)
    return Moments(mean.to(dtype), (spread / n).to(dtype), n)


@torch.no_grad()
def move_running(running_mean: Tensor, running_var: Tensor, batch: Moments, momentum: float) -> None:
    """Updates in place: running = (1 - momentum) running + momentum batch, with the unbiased batch variance."""
    unbiased = batch.var.to(batch.n.dtype) * (batch.n / (batch.n - 1))
    running_mean.lerp_(batch.mean.to(running_mean.dtype), momentum)
    running_var.lerp_(unbiased.to(running_var.dtype), momentum)


def per_step_channel(p: Tensor, ndim: int) -> Tensor:
    """Reshapes [C] or [T, C] so that it broadcasts over [T, B, C, ...] of ``ndim`` axes."""
    trailing = [1] * (ndim - 3)
    return p.view(-1, *trailing) if p.ndim == 1 else p.view(p.shape[0], 1, -1, *trailing)


def batch_map(mean: Tensor, var: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns (scale, shift) with weight (x - mean) / sqrt(var + eps) + bias = scale x + shift."""
    scale = weight * torch.rsqrt(var + eps)
    return scale, -mean * scale if bias is None else bias - mean * scale


def normalise(x: Tensor, mean: Tensor, var: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes weight (x - mean) / sqrt(var + eps) + bias, in x's dtype.

    x: [T, B, C, ...]; all others: [C] or [T, C]
    """
    scale, shift = (per_step_channel(p, x.ndim) for p in batch_map(mean, var, eps, weight, bias))
    return (x.to(scale.dtype) * scale + shift).to(x.dtype)


def batch_norm(
    x: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Calls torch's own fused batch norm on ``x`` [N, C, ...], with correct gradients for N = 1 too."""
    # For one image, torch's backward returns wrong gradients if only one of x and the gradient is channels_last, and
    # the stride of the batch is not that of a whole image (as for one step of a sequence). If space is one axis,
    # channels_last does not exist. The result gets x's format again, since the layers that follow depend on it.
    # In training without gradients too, so that a checkpoint's first forward rounds as its recomputation.
    gradients = training or torch.is_grad_enabled()
    one = len(x) == 1 and x.ndim > 3 and gradients and not torch.compiler.is_compiling()
    y = F.batch_norm(x.flatten(2) if one else x, *running, weight, bias, training, momentum, eps)
    if not one:
        return y
    y = y.unflatten(2, x.shape[2:])
    return y.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and x.stride(1) == 1 else y

"""Runs layers that have no time axis on all time steps at once: [T, B, ...] -> [T*B, ...] -> [T, B, ...].

Folding is a view, so a channels_last tensor stays channels_last on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadyspike.core.transforms import is_transformed


def fold_time(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Calls ``apply`` once on all time steps, folded into the batch; x [T, B, ...] -> [T, B, ...]."""
    steps, batch = x.shape[:2]
    return apply(_as_images(x.flatten(0, 1))).unflatten(0, (steps, batch))


def _as_images(x: Tensor) -> Tensor:
    """Returns ``x`` [T * B, ...]; a single channels_last image gets the batch stride of a whole image.

    After views its batch stride may be any number, which changes no value. But torch's weight gradient of a grouped
    convolution is then wrong.
    """
    if len(x) != 1 or x.ndim < 4 or x.stride(1) != 1 or x.stride(0) == x.numel():
        return x
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed():
        return x
    return x.as_strided(x.shape, (x.numel(), *x.stride()[1:]))


class Folded(nn.Module):
    """Wraps a stateless layer (convolution, linear, pooling) so that it takes [T, B, ...]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return fold_time(self.layer, x)


def repeat_in_time(x: Tensor, steps: int) -> Tensor:
    """Repeats a static input [B, ...] at every time step, [T, B, ...], without copying it (the time stride is 0)."""
    if steps < 1:
        raise ValueError(f"the number of time steps must be at least 1, got {steps}")
    return x.expand(steps, *x.shape)

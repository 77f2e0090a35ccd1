"""Runs layers that have no time axis on all time steps at once: [T, B, ...] -> [T*B, ...] -> [T, B, ...].

Folding is a view, so a channels_last tensor stays channels_last on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def fold_time(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Calls ``apply`` once on all time steps, folded into the batch; x [T, B, ...] -> [T, B, ...]."""
    steps, batch = x.shape[:2]
    return apply(x.flatten(0, 1)).unflatten(0, (steps, batch))


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

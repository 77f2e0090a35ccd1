"""Time folded into the batch for layers that know no time: [T, B, ...] -> [T*B, ...] -> [T, B, ...].

Folding is a view, so a channels_last tensor stays channels_last on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def fold_time(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``apply`` on every time step at once; x [T, B, ...] -> [T, B, ...]."""
    steps, batch = x.shape[:2]
    return apply(x.flatten(0, 1)).unflatten(0, (steps, batch))


class Folded(nn.Module):
    """A stateless layer (convolution, linear, pooling) that takes [T, B, ...]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return fold_time(self.layer, x)


def repeat_in_time(x: Tensor, steps: int) -> Tensor:
    """A static [B, ...] as [T, B, ...] without copying it: the time stride is 0."""
    if steps < 1:
        raise ValueError(f"the number of time steps must be at least 1, got {steps}")
    return x.expand(steps, *x.shape)

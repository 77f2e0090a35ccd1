"""Convolution, norm and neuron, the piece that every network here is made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.norm import TimeNorm
from steadyspike.nn.time import fold_time


def is_repeated(x: Tensor) -> bool:
    """True if all time steps of ``x`` are the same memory, as `repeat_in_time` gives them."""
    return x.shape[0] > 1 and x.stride(0) == 0


def same_at_every_step(norm: nn.Module) -> bool:
    """True if a norm surely gives equal steps for equal steps; a user's own norm may have parameters per step."""
    if isinstance(norm, TimeNorm):
        return not hasattr(norm, "timesteps")
    return isinstance(norm, nn.Identity)


class ConvNorm(nn.Module):
    """Convolution and norm, [T, B, C, H, W] -> [T, B, C', H', W'].

    An input that is the same at every step is convolved once and, unless the norm has per-step parameters, normalised
    once; the result is again a repetition without a copy.

    residual: the result is added to a shortcut (tdBN scales such norms, see `Parts.residual_alpha`).
    """

    def __init__(
        self, parts: Parts, shape: Shape, channels: int, kernel: int = 3, stride: int = 1, *, residual: bool = False
    ) -> None:
        super().__init__()
        self.conv: nn.Module = nn.Conv2d(shape.channels, channels, kernel, stride, kernel // 2, bias=parts.conv_bias)
        self.norm = parts.make_norm(channels, residual)

    def forward(self, x: Tensor) -> Tensor:
        if not is_repeated(x):
            return self.norm(fold_time(self.conv, x))
        y, steps = self.conv(x[0]), x.shape[0]
        if same_at_every_step(self.norm):
            return self.norm(y.unsqueeze(0)).expand(steps, *y.shape)
        # A stride of 0 cannot be folded into the batch; cat copies and, unlike repeat, keeps channels_last.
        return self.norm(torch.cat([y] * steps).unflatten(0, (steps, -1)))


class ConvNormLIF(nn.Module):
    """Convolution, norm, spike: ``lif(norm(conv(x)))``."""

    def __init__(self, parts: Parts, shape: Shape, channels: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv_norm = ConvNorm(parts, shape, channels, kernel, stride)
        self.lif = parts.make_neuron(shape.conv(channels, stride))

    def forward(self, x: Tensor) -> Tensor:
        return self.lif(self.conv_norm(x))

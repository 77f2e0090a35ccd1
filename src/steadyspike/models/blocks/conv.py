"""Convolution, norm and neuron: the layers from which all networks here are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.fused import must_be_called
from steadyspike.nn.fused_conv import conv_norm_neuron
from steadyspike.nn.fused_norm import Normed, repeated_norm_neuron
from steadyspike.nn.norm import TimeNorm
from steadyspike.nn.time import Folded, fold_time


def is_repeated(x: Tensor) -> bool:
    """Returns True if all time steps of ``x`` share the same memory, as after `repeat_in_time`."""
    return x.shape[0] > 1 and x.stride(0) == 0


def once(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Calls a stateless layer on [T, B, ...]; if all steps are the same, calls it once and repeats the result."""
    if not is_repeated(x):
        return layer(x)
    y = layer(x[:1])
    return y.expand(x.shape[0], *y.shape[1:])


def same_at_every_step(norm: nn.Module) -> bool:
    """True if a norm treats all time steps alike; False for a user's own norm, which may have parameters per step."""
    if isinstance(norm, TimeNorm):
        return not hasattr(norm, "timesteps")
    return isinstance(norm, nn.Identity)


class ConvNorm(nn.Module):
    """Convolution and norm, [T, B, C, H, W] -> [T, B, C', H', W'].

    If the input is the same at every step, it is convolved only once. It is also normalised only once, unless the norm
    has parameters per step. The result is repeated without a copy.

    residual: the result is added to a shortcut (tdBN scales such norms, see `Parts.residual_alpha`)
    bias: whether the convolution has a bias; None: `Parts.conv_bias`
    padding: None means half the kernel
    """

    overrides_forward: ClassVar[bool] = False  # decided when a subclass is defined

    def __init__(
        self,
        parts: Parts,
        shape: Shape,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        residual: bool = False,
        bias: bool | None = None,
        padding: int | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        bias = parts.conv_bias if bias is None else bias
        padding = kernel // 2 if padding is None else padding
        self.conv: nn.Module = nn.Conv2d(shape.channels, channels, kernel, stride, padding, groups=groups, bias=bias)
        self.norm = parts.make_norm(channels, residual)

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.overrides_forward = cls.forward is not ConvNorm.forward

    def forward(self, x: Tensor) -> Tensor:
        if not is_repeated(x):
            return self.norm(fold_time(self.conv, x))
        y, steps = self.conv(x[0]), x.shape[0]
        if same_at_every_step(self.norm):
            return self.norm(y.unsqueeze(0)).expand(steps, *y.shape)
        # A time stride of 0 cannot be merged into the batch axis. cat copies and, unlike repeat, keeps channels_last.
        return self.norm(torch.cat([y] * steps).unflatten(0, (steps, -1)))

    def spikes(self, x: Tensor, neuron: nn.Module, extra: Tensor | Normed | None = None) -> Tensor:
        """Returns ``neuron(self(x) + extra)``; it is one call of C++ if possible, see `conv_norm_neuron`.

        If the input is the same at every step, norm and neuron are one node if possible, see `repeated_norm_neuron`.
        """
        repeated = is_repeated(x)
        if not repeated and self.is_plain():
            return conv_norm_neuron(self.conv, self.norm, neuron, x, extra)
        if repeated and extra is None and self.is_plain() and same_at_every_step(self.norm):
            return repeated_norm_neuron(self.norm, neuron, self.conv(x[0]).unsqueeze(0), x.shape[0])
        if isinstance(extra, Normed):
            extra = extra.value()
        current = self(x)
        return neuron(current if extra is None else current + extra)

    def is_plain(self) -> bool:
        """Returns True if convolution and norm may run without a call of this layer.

        Its forward must not be replaced and must have no hooks.
        """
        return not (self.overrides_forward or must_be_called(self))


def pool_spikes() -> Folded:
    """A 3x3 max-pooling of stride 2 for [T, B, C, H, W], as in ImageNet stems and transformers."""
    return Folded(nn.MaxPool2d(3, 2, 1))


class ConvNormLIF(nn.Module):
    """Convolution, norm and neuron: ``lif(norm(conv(x)))``.

    pool: put a 3x3 max-pooling of stride 2 between norm and neuron
    bias: whether the convolution has a bias; None: `Parts.conv_bias`
    """

    def __init__(
        self,
        parts: Parts,
        shape: Shape,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        pool: bool = False,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.conv_norm = ConvNorm(parts, shape, channels, kernel, stride, bias=bias)
        self.pool = pool_spikes() if pool else nn.Identity()
        self.shape = shape.conv(channels, stride).conv(channels, 2 if pool else 1)
        self.lif = parts.make_neuron(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.pool, nn.Identity):
            return self.conv_norm.spikes(x, self.lif)
        return self.lif(self.pool(self.conv_norm(x)))

"""The residual blocks of EMS-ResNet (Su et al., 2023): spikes before every convolution, the stream is a current."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, once
from steadyspike.models.blocks.shortcut import changes_shape
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.time import Folded


class SpikeConvNorm(nn.Module):
    """``norm(conv(lif(x)))``: [T, B, *shape] -> [T, B, *shape.conv(channels, stride)]."""

    def __init__(self, parts: Parts, shape: Shape, channels: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.lif = parts.make_neuron(shape)
        self.conv_norm = ConvNorm(parts, shape, channels, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_norm(self.lif(x))


def _pool(stride: int) -> nn.Module:
    """Max-pooling of real values with equal kernel and stride; nothing for stride 1."""
    return Folded(nn.MaxPool2d(stride)) if stride > 1 else nn.Identity()


class EMSBlock(nn.Module):
    """``branch(x) + shortcut(x)``; the branch is neuron, convolution, norm, twice.

    hidden: channels between the two convolutions

    The shortcut is the identity or, if the shape changes:

    - concat (EMS-Block2, ``Concat_res2``): the missing channels, made by neuron, 1x1 convolution and norm, followed by
      x itself; then max-pooling.
    - otherwise (EMS-Block1, ``BasicBlock_2``): max-pooling, neuron, 1x1 convolution, norm.

      real: without the neuron, so that the convolution reads real values (``BasicBlock_ms``).

    Spikes are never added to each other, so V can always be folded into the convolution after each neuron.
    """

    def __init__(
        self,
        parts: Parts,
        shape: Shape,
        channels: int,
        stride: int = 1,
        *,
        kernel: int = 3,
        hidden: int | None = None,
        concat: bool = False,
        real: bool = False,
    ) -> None:
        super().__init__()
        hidden = channels if hidden is None else hidden
        self.shape = shape.conv(channels, stride)
        self.branch1 = SpikeConvNorm(parts, shape, hidden, kernel, stride)
        self.branch2 = SpikeConvNorm(parts, shape.conv(hidden, stride), channels, kernel)
        self.pool: nn.Module = nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        self.concat = concat and channels > shape.channels
        if self.concat:
            self.shortcut = SpikeConvNorm(parts, shape, channels - shape.channels, 1)
            self.pool = _pool(stride)
        elif changes_shape(shape, channels, stride):
            self.pool = _pool(stride)
            pooled = shape.pooled(stride)
            make = ConvNorm if real else SpikeConvNorm
            self.shortcut = make(parts, pooled, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.concat:  # pooled before they are concatenated, which gives the same with less work
            side = torch.cat([self.pool(self.shortcut(x)), once(self.pool, x)], 2)
        else:
            side = self.shortcut(once(self.pool, x))
        return self.branch2(self.branch1(x)) + side

    def last_norm(self) -> nn.Module:
        """Returns the norm at the end of the branch, whose scale starts small."""
        return self.branch2.conv_norm.norm

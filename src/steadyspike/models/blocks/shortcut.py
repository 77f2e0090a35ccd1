"""Shortcuts of residual blocks: the identity, or a 1x1 convolution and norm where the shape changes."""

from __future__ import annotations

from torch import nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.parts import Parts, Shape


def changes_shape(shape: Shape, channels: int, stride: int) -> bool:
    """True if a block of this kind cannot have an identity shortcut."""
    return stride != 1 or shape.channels != channels


def shortcut(parts: Parts, shape: Shape, channels: int, stride: int) -> nn.Module:
    """Identity if it fits, else 1x1 convolution and norm, without a neuron."""
    if not changes_shape(shape, channels, stride):
        return nn.Identity()
    return ConvNorm(parts, shape, channels, kernel=1, stride=stride, residual=True)

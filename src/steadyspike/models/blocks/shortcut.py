"""Shortcuts of residual blocks: the identity, or a 1x1 convolution and norm if the shape changes."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, is_repeated
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.fused_norm import Normed
from steadyspike.nn.norm import TimeNorm
from steadyspike.nn.time import fold_time


def changes_shape(shape: Shape, channels: int, stride: int) -> bool:
    """Returns True if a block of this kind cannot have an identity shortcut."""
    return stride != 1 or shape.channels != channels


def shortcut(parts: Parts, shape: Shape, channels: int, stride: int) -> nn.Module:
    """Returns the identity if it fits, otherwise a 1x1 convolution and norm without a neuron."""
    if not changes_shape(shape, channels, stride):
        return nn.Identity()
    return ConvNorm(parts, shape, channels, kernel=1, stride=stride, residual=True)


def added(shortcut: nn.Module, x: Tensor) -> Tensor | Normed:
    """Returns ``shortcut(x)`` for `ConvNorm.spikes`, which computes the norm itself if no hook reads it."""
    if not isinstance(shortcut, ConvNorm) or is_repeated(x) or not shortcut.is_plain():
        return shortcut(x)
    if not isinstance(shortcut.norm, TimeNorm):
        return shortcut(x)
    return Normed(shortcut.norm, fold_time(shortcut.conv, x))

"""Builds a sequence of conv-norm-spike layers and poolings."""

from __future__ import annotations

from torch import nn

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.time import Folded

POOL = 0


def conv_row(
    parts: Parts, shape: Shape, plan: tuple[int, ...], *, stride_pool: bool = False
) -> tuple[nn.Sequential, Shape]:
    """Builds conv-norm-spike layers from a plan.

    plan: a number is a layer's channels at width 1, `POOL` is a 2x2 average pooling

    stride_pool: instead of each pooling, the convolution before it has stride 2
    """
    row = nn.Sequential()
    for full, following in zip(plan, (*plan[1:], None)):
        if full != POOL:
            stride = 2 if stride_pool and following == POOL else 1
            row.append(ConvNormLIF(parts, shape, parts.channels(full), stride=stride))
            shape = shape.conv(parts.channels(full), stride)
        elif not stride_pool:
            row.append(Folded(nn.AvgPool2d(2)))
            shape = shape.pooled(2)
    return row, shape

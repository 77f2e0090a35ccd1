"""Plain convolutional networks: a sequence of conv-norm-spike layers and a head.

V can always be folded into the next weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from steadyspike.models.blocks.head import Head
from steadyspike.models.blocks.row import conv_row
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.weight_init import initialise


def plain_cnn(
    task: Task,
    parts: Parts,
    plan: tuple[int, ...],
    *,
    init: str | Callable[[nn.Module], None],
    stride_pool: bool = False,
    **head: Any,
) -> SpikingNet:
    """Builds a plain network. The first entry of ``plan`` is the stem, the others as in `conv_row`.

    head: options of `Head`
    """
    first = Stem(parts, task.image, parts.channels(plan[0]))
    body, shape = conv_row(parts, first.shape, plan[1:], stride_pool=stride_pool)
    last = Head(parts, shape, task.num_classes, pool=0, **head)
    net = SpikingNet(first, body, last, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init)
    return net

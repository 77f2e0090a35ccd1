"""VGG9, the network of TEBN (Duan et al., 2022) for CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steadyspike.models.blocks.row import POOL
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.plain import plain_cnn

PLAN = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL)


def vgg9(
    task: Task,
    parts: Parts,
    *,
    votes: int = 10,
    spiking_fc: bool = False,
    dropout: float = 0.25,
    init: str | Callable[[nn.Module], None] = "kaiming_fan_out",
) -> SpikingNet:
    """64, 64, pool, 128, 128, pool, 256, 256, 256, pool, FC 1024, FC classes * votes; convolutions with bias.

    votes: number of outputs that are averaged for each class; 10 for CIFAR-10 in TEBN's code.
    """
    return plain_cnn(task, parts, PLAN, init=init, hidden=1024, spiking=spiking_fc, dropout=dropout, votes=votes)


register("vgg9", Entry(vgg9, "vgg9", 10, 3, (32, 32), options={"conv_bias": True}))
register("vgg9_tiny", Entry(vgg9, "vgg9", 10, 3, (16, 16), 1 / 16))

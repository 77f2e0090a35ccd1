"""VGGSNN, the network of TET (Deng et al., 2022) with eight convolutions, for DVS-CIFAR10."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steadyspike.models.blocks.row import POOL
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.plain import plain_cnn

PLAN = (64, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)


def vggsnn(
    task: Task,
    parts: Parts,
    *,
    stride_pool: bool = False,
    dropout: float = 0.0,
    init: str | Callable[[nn.Module], None] = "kaiming_fan_out",
) -> SpikingNet:
    """64, 128, pool, 256, 256, pool, 512, 512, pool, 512, 512, pool, FC classes; convolutions with bias.

    stride_pool: TET's variant "woAP", with convolutions of stride 2 instead of average pooling.
    """
    return plain_cnn(task, parts, PLAN, init=init, stride_pool=stride_pool, dropout=dropout)


register("vggsnn", Entry(vggsnn, "vggsnn", 10, 2, (48, 48), options={"conv_bias": True}))
register("vggsnn_tiny", Entry(vggsnn, "vggsnn", 10, 2, (16, 16), 1 / 32))

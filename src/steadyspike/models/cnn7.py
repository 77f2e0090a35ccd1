"""The 7-layer CNN of the paper's DVS-CIFAR10 rows at T = 4 (five convolutions, two fully connected layers)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steadyspike.models.blocks.row import POOL
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.plain import plain_cnn

PLAN = (64, POOL, 128, 128, POOL, 256, 256, POOL)


def cnn7(
    task: Task,
    parts: Parts,
    *,
    spiking_fc: bool = False,
    dropout: float = 0.25,
    init: str | Callable[[nn.Module], None] = "kaiming_fan_out",
) -> SpikingNet:
    """64, pool, 128, 128, pool, 256, 256, pool, FC 1024, FC classes.

    spiking_fc: put a neuron after FC 1024. Neither the paper nor the code on which it is based states whether there is
        one. Without it, the two fully connected layers are one linear map at inference.
    dropout: before each fully connected layer.
    """
    return plain_cnn(task, parts, PLAN, init=init, hidden=1024, spiking=spiking_fc, dropout=dropout)


register("cnn7", Entry(cnn7, "cnn7", 10, 2, (48, 48)))
register("cnn7_tiny", Entry(cnn7, "cnn7", 10, 2, (16, 16), 1 / 16))

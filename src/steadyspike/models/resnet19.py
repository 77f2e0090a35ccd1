"""ResNet-19 (from tdBN, as in the paper's released code), used in most rows of the paper for CIFAR and DVS-CIFAR10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from steadyspike.models.blocks.basic import BasicBlock
from steadyspike.models.blocks.head import Head
from steadyspike.models.blocks.stages import Block, block_counts, residual_stages
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.weight_init import initialise

HEADS: dict[str, dict[str, Any]] = {
    "linear": {"pool": Head.GLOBAL},
    "tet": {"pool": Head.GLOBAL, "hidden": 256, "spiking": True},
    "tebn": {"pool": 2, "hidden": 256},
}


def resnet19(
    task: Task,
    parts: Parts,
    *,
    stem: int = 64,
    head: str = "linear",
    dropout: float = 0.25,
    layers: tuple[int, int, int] = (3, 3, 2),
    block: Block = BasicBlock,
    init: str | Callable[[nn.Module], None] = "default",
    zero_residual: bool = False,
) -> SpikingNet:
    """ResNet-19: conv3x3 stem, stages of 128, 256, 512 channels (strides 1, 2, 2), classifier at every step.

    stem: 64 in the released code; 128 in TEBN and TAB (the first block then has an identity shortcut)
    head: ``"linear"``: global average, one layer (the released code); ``"tet"``: global average, 256, spike, classes;
        ``"tebn"``: 2x2 average, flatten, 256, classes without a neuron in between (TEBN and TAB)
    dropout: before each fully connected layer; 0.25 in the paper's text, 0 in its released code
    init: TEBN and TAB use ``"kaiming_fan_out"``
    """
    if head not in HEADS:
        raise ValueError(f"unknown head {head!r}; known: {', '.join(HEADS)}")
    first = Stem(parts, task.image, parts.channels(stem))
    plan = zip((128, 256, 512), block_counts(layers, 3), (1, 2, 2))
    body, shape = residual_stages(block, parts, first.shape, plan)
    last = Head(parts, shape, task.num_classes, dropout=dropout, **HEADS[head])
    net = SpikingNet(first, body, last, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init, zero_residual=zero_residual)
    return net


register("resnet19", Entry(resnet19, "resnet19", 10, 3, (32, 32)))
register("resnet19_tiny", Entry(resnet19, "resnet19", 10, 3, (16, 16), 1 / 16, {"layers": (1, 1, 1)}))

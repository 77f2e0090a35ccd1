"""Spiking ResNet-34 for ImageNet, used in the paper's "ResNet-34" rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steadyspike.models.blocks.basic import BasicBlock
from steadyspike.models.blocks.head import Head
from steadyspike.models.blocks.stages import Block, block_counts, residual_stages
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.weight_init import initialise

WIDTHS = (64, 128, 256, 512)


def resnet34(
    task: Task,
    parts: Parts,
    *,
    layers: tuple[int, int, int, int] = (3, 4, 6, 3),
    block: Block = BasicBlock,
    dropout: float = 0.0,
    init: str | Callable[[nn.Module], None] = "imagenet",
    zero_residual: bool = False,
) -> SpikingNet:
    """ResNet-34: conv7x7 of stride 2, neuron, max-pooling, stages of 64 to 512 channels, global average, one layer."""
    first = Stem(parts, task.image, parts.channels(64), kernel=7, stride=2, pool=True)
    body, shape = residual_stages(block, parts, first.shape, zip(WIDTHS, block_counts(layers, 4), (1, 2, 2, 2)))
    last = Head(parts, shape, task.num_classes, dropout=dropout)
    net = SpikingNet(first, body, last, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init, zero_residual=zero_residual)
    return net


register("resnet34", Entry(resnet34, "resnet34", 1000, 3, (224, 224)))
register("resnet34_tiny", Entry(resnet34, "resnet34", 10, 3, (32, 32), 1 / 8, {"layers": (2, 1, 1, 1)}))

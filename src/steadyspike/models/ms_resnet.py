"""MS-ResNet (Hu et al., 2021): the residual stream is real-valued, all other activations are spikes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from steadyspike.models.blocks.head import Head
from steadyspike.models.blocks.ms import MSBlock
from steadyspike.models.blocks.stages import Block, block_counts, residual_stages
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.models.weight_init import initialise

WIDTHS = (64, 128, 256, 512)


def _deep_stem_conv(image: Shape, channels: int) -> nn.Sequential:
    """Three 3x3 convolutions with bias in sequence, the first with stride 2 (MS-ResNet-104)."""
    return nn.Sequential(
        nn.Conv2d(image.channels, channels, 3, 2, 1),
        nn.Conv2d(channels, channels, 3, 1, 1),
        nn.Conv2d(channels, channels, 3, 1, 1),
    )


def ms_resnet(
    task: Task,
    parts: Parts,
    *,
    layers: tuple[int, int, int, int] = (2, 2, 2, 2),
    deep: bool = False,
    block: Block | None = None,
    dropout: float = 0.0,
    init: str | Callable[[nn.Module], None] = "default",
    zero_residual: bool = True,
) -> SpikingNet:
    """MS-ResNet: conv7x7 stem of stride 2 without a neuron, four stages of stride 2, a neuron, global average, FC.

    deep: MS-ResNet-104's stem of three 3x3 convolutions and average-pooled shortcuts
    zero_residual: the last norm of a block starts at scale 0, as in the official code. The official code starts all
        other norms at the threshold (0.5); here they start at 1.
    """
    block = block or partial(MSBlock, pool_shortcut=deep)
    first = Stem(parts, task.image, parts.channels(64), kernel=7, stride=2, neuron=False)
    if deep:
        first.conv_norm.conv = _deep_stem_conv(task.image, parts.channels(64))
    body, shape = residual_stages(block, parts, first.shape, zip(WIDTHS, block_counts(layers, 4), (2, 2, 2, 2)))
    body.add_module("lif", parts.make_neuron(shape))
    last = Head(parts, shape, task.num_classes, dropout=dropout)
    net = SpikingNet(first, body, last, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init, zero_residual=zero_residual)
    return net


register("ms_resnet18", Entry(ms_resnet, "ms_resnet", 1000, 3, (224, 224)))
register("ms_resnet34", Entry(ms_resnet, "ms_resnet", 1000, 3, (224, 224), options={"layers": (3, 4, 6, 3)}))
register(
    "ms_resnet104",
    Entry(
        ms_resnet,
        "ms_resnet",
        1000,
        3,
        (224, 224),
        options={"layers": (3, 8, 32, 8), "deep": True, "dropout": 0.2},
    ),
)
register("ms_resnet_tiny", Entry(ms_resnet, "ms_resnet", 10, 3, (32, 32), 1 / 8, {"layers": (1, 1, 1, 1)}))

"""SEW networks (Fang et al., 2021): SEW-ResNet-34 for ImageNet and the authors' small network for CIFAR10-DVS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.blocks.head import Head
from steadyspike.models.blocks.sew import SEWBlock
from steadyspike.models.blocks.stages import block_counts
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.models.resnet34 import resnet34
from steadyspike.models.streams import set_streams
from steadyspike.models.weight_init import initialise
from steadyspike.nn.time import Folded


def sew_resnet34(
    task: Task,
    parts: Parts,
    *,
    connect: str = "add",
    tie_stream_threshold: bool = False,
    layers: tuple[int, int, int, int] = (3, 4, 6, 3),
    dropout: float = 0.0,
    init: str | Callable[[nn.Module], None] = "kaiming_fan_out",
    zero_residual: bool = False,
) -> SpikingNet:
    """ResNet-34 with SEW blocks: spikes are added after the neuron; shortcuts that change the shape have neurons too.

    connect: ``"add"``, ``"and"`` or ``"iand"``, see `SEWBlock`
    tie_stream_threshold: one threshold for all neurons that write to one residual stream (four streams)
    """
    block = partial(SEWBlock, connect=connect)
    net = resnet34(task, parts, layers=layers, block=block, dropout=dropout, init=init, zero_residual=zero_residual)
    set_streams(net, tie=tie_stream_threshold)
    return net


def sew_dvs(
    task: Task,
    parts: Parts,
    *,
    connect: str = "add",
    tie_stream_threshold: bool = False,
    blocks: tuple[int, int] = (4, 3),
    init: str | Callable[[nn.Module], None] = "default",
    zero_residual: bool = False,
) -> SpikingNet:
    """A network of a 1x1 stem and seven SEW blocks (64 channels, then 128), each followed by a max-pooling.

    There are two streams. The max-poolings act on the streams. With ``"add"``, V can therefore be folded exactly into
    the weights only if thresholds are tied.
    """
    first = Stem(parts, task.image, parts.channels(64), kernel=1)
    body, shape = nn.Sequential(), first.shape
    for full, count in zip((64, 128), block_counts(blocks, 2, "blocks")):
        channels = parts.channels(full)
        if shape.channels != channels:
            body.append(ConvNormLIF(parts, shape, channels, kernel=1))
            shape = shape.conv(channels)
        for _ in range(count):
            body.append(SEWBlock(parts, shape, channels, connect=connect))
            body.append(Folded(nn.MaxPool2d(2)))
            shape = shape.pooled(2)
    last = Head(parts, shape, task.num_classes, pool=0)
    net = SpikingNet(first, body, last, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init, zero_residual=zero_residual)
    set_streams(net, tie=tie_stream_threshold)
    return net


register("sew_resnet34", Entry(sew_resnet34, "sew_resnet34", 1000, 3, (224, 224)))
register("sew_resnet34_tiny", Entry(sew_resnet34, "sew_resnet34", 10, 3, (32, 32), 1 / 8, {"layers": (2, 1, 1, 1)}))
register("sew_dvs", Entry(sew_dvs, "sew_dvs", 10, 2, (128, 128)))
register("sew_dvs_tiny", Entry(sew_dvs, "sew_dvs", 10, 2, (16, 16), 1 / 8, {"blocks": (2, 1)}))

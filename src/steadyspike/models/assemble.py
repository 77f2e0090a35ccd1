"""The last steps of building a transformer: classifier, initial weights, streams."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steadyspike.models.blocks.head import Head
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.models.streams import set_streams
from steadyspike.models.weight_init import initialise

Init = str | Callable[[nn.Module], None]


def assemble(
    task: Task,
    parts: Parts,
    layers: tuple[nn.Module, nn.Sequential, Shape],
    *,
    init: Init,
    tie: bool | None = None,
    head_bias: bool = True,
) -> SpikingNet:
    """Builds a network from (stem, body, output shape of the body).

    Its head is a mean over the image and one linear layer.

    tie: None if the residual stream is a current. If the stream is a sum of spikes, True ties the thresholds of its
    neurons.
    """
    stem, body, shape = layers
    head = Head(parts, shape, task.num_classes, bias=head_bias)
    net = SpikingNet(stem, body, head, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init)
    if tie is not None:
        set_streams(net, tie=tie)
    return net

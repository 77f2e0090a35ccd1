"""The first layer: encodes an image or frames as currents or spikes."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.time import Folded


class Stem(nn.Module):
    """``pool( lif( norm(conv(x)) ) )``: direct encoding; the neuron turns the same current at every step into spikes.

    neuron: False leaves currents, for bodies that spike first (MS-ResNet).
    pool: 3x3 max-pooling of stride 2 on the spikes (ImageNet networks).
    """

    def __init__(
        self,
        parts: Parts,
        image: Shape,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        neuron: bool = True,
        pool: bool = False,
    ) -> None:
        super().__init__()
        shape = image.conv(channels, stride)
        self.conv_norm = ConvNorm(parts, image, channels, kernel, stride)
        self.lif = parts.make_neuron(shape) if neuron else nn.Identity()
        self.pool = Folded(nn.MaxPool2d(3, 2, 1)) if pool else nn.Identity()
        self.shape = shape.conv(channels, 2) if pool else shape

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.lif(self.conv_norm(x)))

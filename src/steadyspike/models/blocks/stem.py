"""The first layer: encodes an image or frames as currents or spikes."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, once, pool_spikes
from steadyspike.models.parts import Parts, Shape


class Stem(nn.Module):
    """``pool( lif( norm(conv(x)) ) )``: direct encoding; the neuron turns the same current at every step into spikes.

    neuron: False leaves currents, for bodies that spike first (MS-ResNet).
    pool: 3x3 max-pooling of stride 2 on the spikes (ImageNet networks), or on the currents where nothing spikes.
    pool_first: that pooling stands between norm and neuron (QKFormer); a static image is then pooled once.
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
        pool_first: bool = False,
    ) -> None:
        super().__init__()
        shape = image.conv(channels, stride)
        self.shape = shape.conv(channels, 2) if pool else shape
        self.pool_first = pool_first or not neuron
        self.conv_norm = ConvNorm(parts, image, channels, kernel, stride)
        self.lif = parts.make_neuron(self.shape if self.pool_first else shape) if neuron else nn.Identity()
        self.pool = pool_spikes() if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        current = self.conv_norm(x)
        return self.lif(once(self.pool, current)) if self.pool_first else self.pool(self.lif(current))

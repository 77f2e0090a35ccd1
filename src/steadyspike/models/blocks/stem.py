"""The first layer of a network, which turns an image or frames into currents or spikes."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, once, pool_spikes, same_at_every_step
from steadyspike.models.parts import Parts, Shape


class Stem(nn.Module):
    """Direct encoding, ``pool( lif( norm(conv(x)) ) )``: the neuron turns the current into spikes.

    neuron: if False, the output is a current, for bodies that start with a neuron (MS-ResNet)
    pool: 3x3 max-pooling of stride 2, on the spikes (ImageNet networks), or on the currents if there is no neuron
    pool_first: put the pooling between norm and neuron (QKFormer); a static image is then pooled only once
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
        self.pool_first = (pool and pool_first) or not neuron
        self.conv_norm = ConvNorm(parts, image, channels, kernel, stride)
        self.lif = parts.make_neuron(self.shape if self.pool_first else shape) if neuron else nn.Identity()
        self.pool = pool_spikes() if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.pool_first:
            if same_at_every_step(self.conv_norm.norm):
                # Repeated after the pooling, not before, so that no gradient has to be stored for T copies of the whole
                # image.
                return self.lif(once(self._pooled, x))
            return self.lif(once(self.pool, self.conv_norm(x)))
        return self.pool(self.conv_norm.spikes(x, self.lif))

    def _pooled(self, x: Tensor) -> Tensor:
        return self.pool(self.conv_norm(x))

"""The basic block of ResNet-19 and Spiking ResNet-34: the shortcut is added before the last neuron."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.blocks.shortcut import added, shortcut
from steadyspike.models.parts import Parts, Shape


class BasicBlock(nn.Module):
    """``lif2( norm(conv(lif1(norm(conv(x))))) + shortcut(x) )``: add, then spike.

    Input and output are spikes (V*S with TrSG), so an identity shortcut adds the spikes of the previous block to a
    current. Unlike in a network with a norm in between, V changes the forward pass here. The 1x1 shortcut has no
    neuron.

    identity_norm: put a norm on identity shortcuts too, as TEBN's code does.
    """

    def __init__(
        self, parts: Parts, shape: Shape, channels: int, stride: int = 1, *, identity_norm: bool = False
    ) -> None:
        super().__init__()
        out = shape.conv(channels, stride)
        self.conv1 = ConvNorm(parts, shape, channels, stride=stride)
        self.lif1 = parts.make_neuron(out)
        self.conv2 = ConvNorm(parts, out, channels, residual=True)
        self.shortcut = shortcut(parts, shape, channels, stride)
        if identity_norm and isinstance(self.shortcut, nn.Identity):
            self.shortcut = parts.make_norm(channels, residual=True)
        self.lif2 = parts.make_neuron(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2.spikes(self.conv1.spikes(x, self.lif1), self.lif2, added(self.shortcut, x))

    def last_norm(self) -> nn.Module:
        """Returns the norm whose scale starts at zero, so that the branch is silent at the start."""
        return self.conv2.norm

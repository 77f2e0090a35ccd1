"""`ProjectedAttention`: what attention layers that end in a projection share."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.nn.fused import must_be_called


class ProjectedAttention(nn.Module):
    """``proj(mixed(x))``, [T, B, C, H, W] -> the same: a current. Subclasses give ``proj`` and `mixed`."""

    proj: ConvNorm

    def mixed(self, x: Tensor) -> Tensor:
        """The spikes that go into the projection."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.mixed(x))

    def spikes(self, x: Tensor, neuron: nn.Module) -> Tensor:
        """``neuron(self(x))``; the last norm and the scan run as one operator if possible."""
        if type(self).forward is not ProjectedAttention.forward or must_be_called(self):
            return neuron(self(x))
        return self.proj.spikes(self.mixed(x), neuron)

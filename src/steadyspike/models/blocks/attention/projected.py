"""`ProjectedAttention`: the common part of attention layers that end in a projection."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.nn.fused import must_be_called


class ProjectedAttention(nn.Module):
    """``proj(mixed(x))``, [T, B, C, H, W] -> the same shape; the output is a current.

    Subclasses define ``proj`` and `mixed`.
    """

    overrides_forward: ClassVar[bool] = False  # decided when a subclass is defined
    proj: ConvNorm

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.overrides_forward = cls.forward is not ProjectedAttention.forward

    def mixed(self, x: Tensor) -> Tensor:
        """Returns the spikes that are the projection's input."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.mixed(x))

    def spikes(self, x: Tensor, neuron: nn.Module) -> Tensor:
        """Returns ``neuron(self(x))``; the last norm and the scan run as one operator if possible."""
        if self.overrides_forward or must_be_called(self):
            return neuron(self(x))
        return self.proj.spikes(self.mixed(x), neuron)

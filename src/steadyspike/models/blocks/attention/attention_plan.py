"""`AttentionPlan`: the settings that all attention layers of a network share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steadyspike.nn.whole import whole_number


@dataclass(frozen=True)
class AttentionPlan:
    """The settings of attention layers.

    heads: number of heads; each gets an equal part of the layer's channels
    scale: factor of the product of q, k and v
    v_init: starting threshold of the neuron after the product (0.5 as published); None: that of the other neurons
    qkv_bias, bias: biases in the convolutions of q, k, v, and in those of projection and MLP. The norms that follow
        cancel their effect.
    """

    heads: int = 8
    scale: float = 0.125
    v_init: float | None = 0.5
    qkv_bias: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        whole_number(self.heads, "heads")
        if not math.isfinite(self.scale):
            raise ValueError(f"attn_scale={self.scale} is not a finite number")

    def head_width(self, channels: int) -> int:
        """Returns the number of channels of one head."""
        heads = self.heads
        if channels % heads:
            fits = ", ".join(str(n) for n in range(1, channels + 1) if channels % n == 0)
            raise ValueError(f"heads={heads} cannot divide {channels} channels equally; heads may be {fits}")
        return channels // heads

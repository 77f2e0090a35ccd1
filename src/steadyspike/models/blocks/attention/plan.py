"""What the attention layers of one network have in common."""

from __future__ import annotations

from dataclasses import dataclass

from steadyspike.nn.whole import whole_number


@dataclass(frozen=True)
class AttentionPlan:
    """heads: they share the channels of the layer.
    scale: factor of the product of q, k and v.
    v_init: threshold that the neuron behind the product starts with (0.5 published); None: that of the other neurons.
    qkv_bias, bias: biases in the convolutions of q, k, v, and in those of projection and MLP. The norm behind them
        makes them idle.
    """

    heads: int = 8
    scale: float = 0.125
    v_init: float | None = 0.5
    qkv_bias: bool = False
    bias: bool = True

    def head_width(self, channels: int) -> int:
        """Channels of one head."""
        heads = whole_number(self.heads, "heads")
        if channels % heads:
            fits = ", ".join(str(n) for n in range(1, channels + 1) if channels % n == 0)
            raise ValueError(f"heads={heads} cannot share {channels} channels; heads may be {fits}")
        return channels // heads

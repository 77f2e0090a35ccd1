"""QKFormer's token attention (Zhou et al., 2024): q selects the tokens of k that pass."""

from __future__ import annotations

from torch import Tensor

from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.projected import ProjectedAttention
from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import laid_out_as


class TokenQK(ProjectedAttention):
    """``norm(conv( a * k ))`` with a = lif(sum of q over the channels of a head).

    q, k = lif(norm(conv(x))); a is one spike per head and token, [T, B, heads, H, W]. The cost is linear in tokens and
    channels.
    """

    def __init__(self, parts: Parts, shape: Shape, plan: AttentionPlan) -> None:
        super().__init__()
        plan.head_width(shape.channels)
        self.heads = plan.heads
        self.q, self.k = (
            ConvNormLIF(parts, shape, shape.channels, kernel=1, bias=plan.qkv_bias or None) for _ in range(2)
        )
        self.lif = parts.make_neuron(shape._replace(channels=plan.heads), plan.v_init)
        self.proj = ConvNorm(parts, shape, shape.channels, kernel=1, bias=plan.bias or None)

    def mixed(self, x: Tensor) -> Tensor:
        q, k = self.q(x), self.k(x)
        speaks = self.lif(laid_out_as(q.unflatten(2, (self.heads, -1)).sum(3), q))
        return (speaks.unsqueeze(3) * k.unflatten(2, (self.heads, -1))).flatten(2, 3)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

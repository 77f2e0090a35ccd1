"""Spiking self-attention (Zhou et al., Spikformer, 2023)."""

from __future__ import annotations

from torch import Tensor

from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.projected import ProjectedAttention
from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import heads_of, image_of, spike_attention


class SelfAttention(ProjectedAttention):
    """``norm(conv( lif( scale * v (k^T q) ) ))`` with q, k, v = lif(norm(conv(x))); [T, B, C, H, W] -> the same shape.

    x is spikes or a sum of spikes. There is no softmax, because products of spikes are not negative. The output is a
    current; the block passes it through a neuron (Spikformer, QKFormer) or adds it to its stream (Spikingformer,
    ``residual=True``).
    """

    def __init__(self, parts: Parts, shape: Shape, plan: AttentionPlan, *, residual: bool = False) -> None:
        super().__init__()
        plan.head_width(shape.channels)
        self.heads, self.scale = plan.heads, plan.scale
        self.q, self.k, self.v = (
            ConvNormLIF(parts, shape, shape.channels, kernel=1, bias=plan.qkv_bias or None) for _ in range(3)
        )
        self.lif = parts.make_neuron(shape, plan.v_init)
        self.proj = ConvNorm(parts, shape, shape.channels, kernel=1, bias=plan.bias or None, residual=residual)

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        tokens_q, tokens_k, tokens_v = (heads_of(s, self.heads) for s in (q, k, v))
        return self.lif(image_of(spike_attention(tokens_q, tokens_k, tokens_v, self.scale), q))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, scale={self.scale}"

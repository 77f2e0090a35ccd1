"""Dual spike self-attention (Shi et al., SpikingResformer, 2024), scaled by the firing rate of each head."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.blocks.sew import spikes_of
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import heads_of, image_of
from steadyspike.nn.attention.rates import RunningRate
from steadyspike.nn.neuron import Neuron


def _height(neuron: nn.Module) -> Tensor | float:
    """Returns the value of one spike in a neuron's output: V with TrSG, [1] or [channels]; otherwise 1."""
    return neuron.threshold if isinstance(neuron, Neuron) and neuron.spec.family == "trsg" else 1.0


def _scaled(product: Tensor, spikes: Tensor, height: Tensor | float) -> Tensor:
    """Scales a product [T, B, heads, ...] of about ``spikes`` [heads] spikes of this height to unit variance."""
    return product * (spikes.rsqrt() / height).to(product.dtype).view(-1, 1, 1)


class DualAttention(nn.Module):
    """``norm(conv( lif_out( s2 * y2 A ) ))`` with A = lif_attention( s1 * y1^T s ) and s = lif(x); y1 and y2 are real.

    y = norm(conv(s)) with a kernel and stride of ``patch``; its channels are split into y1 and y2 within each head.
    Shapes: s [T, B, h, d, N]; y1, y2 [T, B, h, d, L]; A [T, B, h, L, N]; L = N / patch^2.
    s1 = 1 / sqrt(r_s d) and s2 = 1 / sqrt(r_A L), where r is the running firing rate of a head (`RunningRate`), so that
    both currents have about unit variance. Rates and products are computed from S: with TrSG, V*S is divided by V.
    """

    def __init__(self, parts: Parts, shape: Shape, plan: AttentionPlan, patch: int) -> None:
        super().__init__()
        if shape.height % patch or shape.width % patch:
            raise ValueError(
                f"the attention takes patches of {patch}x{patch}, but the image is {shape.height}x{shape.width} here; "
                "give an image_size that is a multiple of the network's stride"
            )
        width, heads = plan.head_width(shape.channels), plan.heads
        tokens = shape.height * shape.width
        self.heads, self.width, self.patch = heads, width, patch
        self.lif = parts.make_neuron(shape)
        self.y = ConvNorm(parts, shape, 2 * shape.channels, patch, patch, padding=0, bias=plan.qkv_bias or None)
        self.lif_attention = parts.make_map_neuron(heads, tokens // patch**2 * tokens, plan.v_init)
        self.lif_out = parts.make_neuron(shape)
        self.proj = ConvNorm(parts, shape, shape.channels, kernel=1, residual=True, bias=plan.bias or None)
        self.rate, self.rate_attention = RunningRate(heads), RunningRate(heads)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < self.patch:
            raise ValueError(
                f"the image is too small for this network: {x.shape[-2]}x{x.shape[-1]} is left where the attention "
                f"takes patches of {self.patch}x{self.patch}; give larger images"
            )
        out = self.lif(x)
        y1, y2 = heads_of(self.y(out), self.heads).split(self.width, dim=3)
        height = _height(self.lif)
        if isinstance(height, Tensor) and height.numel() > 1:
            # If V differs per channel, it cannot be taken out of the sum over channels, so S is used instead of V*S.
            out, height = spikes_of(self.lif, out), 1.0
        s = heads_of(out, self.heads)
        current = _scaled(y1.mT @ s, self.rate(s) * self.width, height)
        attended = self.lif_attention(current.flatten(3)).unflatten(3, tuple(current.shape[3:]))
        length = attended.shape[3]
        current = _scaled(y2 @ attended, self.rate_attention(attended) * length, _height(self.lif_attention))
        return self.proj(self.lif_out(image_of(current, out)))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, patch={self.patch}"

"""Spike-driven self-attention, SDSA-1 (Yao et al., 2023): masks and sums, no matrix product."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import max_pool2d

from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.projected import ProjectedAttention
from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import heads_of, image_of
from steadyspike.nn.time import fold_time


def _widen(x: Tensor) -> Tensor:
    """3x3 max-pooling of stride 1 over the last two axes of [T, B, C, H, W]."""
    return fold_time(lambda y: max_pool2d(y, 3, 1, 1), x)


class SpikeDrivenAttention(ProjectedAttention):
    """``norm(conv( q * lif( sum over tokens of k * v ) ))``, [T, B, C, H, W] -> the same shape; x is spikes.

    erode: the published variant for event data (called "Erode", but it is a dilation): 3x3 max-pooling of k and v in
        space, and of k * v and of the masked q over (token, channel of a head).
    """

    def __init__(self, parts: Parts, shape: Shape, plan: AttentionPlan, *, erode: bool = False) -> None:
        super().__init__()
        plan.head_width(shape.channels)
        self.heads, self.erode = plan.heads, erode
        self.q, self.k, self.v = (
            ConvNormLIF(parts, shape, shape.channels, kernel=1, bias=plan.qkv_bias or None) for _ in range(3)
        )
        self.lif = parts.make_neuron(Shape(shape.channels, 1, 1), plan.v_init)
        self.proj = ConvNorm(parts, shape, shape.channels, kernel=1, residual=True, bias=plan.bias or None)

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.erode:
            k, v = _widen(k), _widen(v)
        mask = self.lif(self._eroded(k * v).sum((-2, -1), keepdim=True))
        return self._eroded(q * mask)

    def _eroded(self, x: Tensor) -> Tensor:
        """Returns ``x`` with 3x3 max-pooling over (token, channel of a head) if ``erode``; otherwise ``x`` itself.

        In nearly every window several spikes are equal, and the first one gets the gradient. The axes are therefore [N,
        d], in the order of the official code.
        """
        if not self.erode:
            return x
        tokens = heads_of(x, self.heads).mT
        return image_of(_widen(tokens.flatten(0, 1)).unflatten(0, tuple(x.shape[:2])).mT, x)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, erode={self.erode}"

"""The MLPs of spiking transformers: 1x1 convolutions, so that tokens stay an image [T, B, C, H, W]."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF
from steadyspike.models.parts import Parts, Shape


def hidden_channels(channels: int, ratio: float) -> int:
    """Returns the number of channels between the two layers."""
    hidden = round(channels * ratio)
    if hidden < 1:
        raise ValueError(f"mlp_ratio must be above 0, got {ratio!r}")
    return hidden


class SpikeMLP(nn.Module):
    """``lif(norm(conv( lif(norm(conv(x))) )))``: spikes in, spikes out (Spikformer, QKFormer)."""

    def __init__(self, parts: Parts, shape: Shape, ratio: float = 4.0, *, bias: bool = False) -> None:
        super().__init__()
        hidden = hidden_channels(shape.channels, ratio)
        self.fc1 = ConvNormLIF(parts, shape, hidden, kernel=1, bias=bias or None)
        self.fc2 = ConvNormLIF(parts, shape._replace(channels=hidden), shape.channels, kernel=1, bias=bias or None)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


class CurrentMLP(nn.Module):
    """``x + norm(conv( lif2(norm(conv( lif1(x) ))) ))``; the stream is a current (Spikingformer, S-Transformer).

    inner_residual: as in S-Transformer, with ratio 1. ``x`` is added after the first norm too, and the output is added
        to that sum instead of ``x``.
    """

    def __init__(
        self,
        parts: Parts,
        shape: Shape,
        ratio: float = 4.0,
        *,
        bias: bool = False,
        inner_residual: bool = False,
    ) -> None:
        super().__init__()
        hidden = hidden_channels(shape.channels, ratio)
        inner = shape._replace(channels=hidden)
        self.inner_residual = inner_residual and hidden == shape.channels
        self.lif1 = parts.make_neuron(shape)
        self.fc1 = ConvNorm(parts, shape, hidden, kernel=1, bias=bias or None, residual=self.inner_residual)
        self.lif2 = parts.make_neuron(inner)
        self.fc2 = ConvNorm(parts, inner, shape.channels, kernel=1, bias=bias or None, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        s = self.lif1(x)
        if self.inner_residual:
            x = x + self.fc1(s)
            return x + self.fc2(self.lif2(x))
        return x + self.fc2(self.fc1.spikes(s, self.lif2))


class GroupMLP(nn.Module):
    """SpikingResformer's MLP.

        x + norm(conv(lif(m))),  m = u + norm(group conv 3x3 (lif(u))),  u = norm(conv(lif(x)))

    group: number of channels in one group of the 3x3 convolution.
    """

    def __init__(self, parts: Parts, shape: Shape, ratio: float, group: int, *, bias: bool = False) -> None:
        super().__init__()
        hidden = hidden_channels(shape.channels, ratio)
        if hidden % group:
            raise ValueError(
                f"mlp_ratio={ratio!r} gives {hidden} channels, which cannot be divided into groups of {group}; choose "
                "another mlp_ratio"
            )
        inner = shape._replace(channels=hidden)
        self.lif1 = parts.make_neuron(shape)
        self.fc1 = ConvNorm(parts, shape, hidden, kernel=1, bias=bias or None)
        self.lif2 = parts.make_neuron(inner)
        self.conv = ConvNorm(parts, inner, hidden, bias=bias or None, residual=True, groups=hidden // group)
        self.lif3 = parts.make_neuron(inner)
        self.fc2 = ConvNorm(parts, inner, shape.channels, kernel=1, bias=bias or None, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        u = self.fc1(self.lif1(x))
        return x + self.fc2(self.conv.spikes(self.lif2(u), self.lif3, u))

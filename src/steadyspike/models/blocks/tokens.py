"""From images to tokens: the convolutional stems of spiking transformers. Tokens stay images [T, B, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF, pool_spikes
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.parts import Parts, Shape


def pool_flags(pools: str, count: int = 4) -> list[bool]:
    """Returns which layers of a stem are followed by a pooling of stride 2, from a text such as ``"0011"``."""
    if not isinstance(pools, str) or len(pools) != count or set(pools) - set("01"):
        raise ValueError(f"pools must be a text of {count} characters 0 or 1, one per layer of the stem, got {pools!r}")
    return [flag == "1" for flag in pools]


def conv_tokens(
    parts: Parts, image: Shape, dim: int, pools: str, *, pool_first: bool = False
) -> tuple[Stem, nn.Sequential, Shape]:
    """Spikformer's stem: four conv-norm-spike layers of dim/8, dim/4, dim/2, dim channels, with poolings.

    pool_first: put the poolings before the neurons (as SpikingJelly does) instead of after them
    """
    flags = pool_flags(pools)
    stem = Stem(parts, image, parts.channels(dim // 8), pool=flags[0], pool_first=pool_first)
    row, shape = nn.Sequential(), stem.shape
    for divisor, pool in zip((4, 2, 1), flags[1:]):
        layer = ConvNormLIF(parts, shape, parts.channels(dim // divisor), pool=pool and pool_first)
        row.append(layer)
        shape = layer.shape
        if pool and not pool_first:
            row.append(pool_spikes())
            shape = shape.conv(shape.channels, 2)
    return stem, row, shape


class PositionConv(nn.Module):
    """The positional convolution, ``x + lif(norm(conv(x)))``: a token's neighbours provide its position."""

    starts_stream = False

    def __init__(self, parts: Parts, shape: Shape) -> None:
        super().__init__()
        self.conv = ConvNormLIF(parts, shape, shape.channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)

    def stream_writers(self) -> list[str]:
        """Returns the names of the neurons whose output enters the stream."""
        return ["conv.lif"]


class SpikeFirstConv(nn.Module):
    """``norm(conv( pool(lif(x)) ))``: currents in, currents out (Spikingformer, SpikingResformer).

    pool: 3x3 max-pooling of stride 2 on the spikes
    """

    def __init__(self, parts: Parts, shape: Shape, channels: int, *, stride: int = 1, pool: bool = False) -> None:
        super().__init__()
        self.lif = parts.make_neuron(shape)
        self.pool = pool_spikes() if pool else nn.Identity()
        pooled = shape.conv(shape.channels, 2 if pool else 1)
        self.conv_norm = ConvNorm(parts, pooled, channels, stride=stride)
        self.shape = pooled.conv(channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_norm(self.pool(self.lif(x)))


class CurrentTokens(nn.Module):
    """The last part of S-Transformer's stem: ``y + norm(conv( lif(y) ))`` with y = pool(norm(conv(x))); a current."""

    def __init__(self, parts: Parts, shape: Shape, channels: int, *, pool: bool) -> None:
        super().__init__()
        self.conv_norm = ConvNorm(parts, shape, channels)
        self.pool = pool_spikes() if pool else nn.Identity()
        self.shape = shape.conv(channels, 2 if pool else 1)
        self.lif = parts.make_neuron(self.shape)
        self.position = ConvNorm(parts, self.shape, channels, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.conv_norm(x))
        return y + self.position(self.lif(y))


class PatchEmbed(nn.Module):
    """QKFormer's patch embedding, ``row(x) + lif(norm(conv1x1(x)))``: a sum of spikes.

    plan: (channels, True if pooled before the neuron) of each layer of the row

    The 1x1 convolution has a stride that equals all poolings of the row together.
    """

    starts_stream = True

    def __init__(self, parts: Parts, shape: Shape, plan: Sequence[tuple[int, bool]]) -> None:
        super().__init__()
        self.row, start, stride = nn.Sequential(), shape, 1
        for channels, pool in plan:
            layer = ConvNormLIF(parts, shape, channels, pool=pool)
            self.row.append(layer)
            shape, stride = layer.shape, stride * (2 if pool else 1)
        self.shortcut = ConvNormLIF(parts, start, shape.channels, kernel=1, stride=stride)
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.row(x) + self.shortcut(x)

    def stream_writers(self) -> list[str]:
        """Returns the names of the neurons whose output enters the stream."""
        return [f"row.{len(self.row) - 1}.lif", "shortcut.lif"]


class ExpansionBlock(nn.Module):
    """A block of Spikformer V2's stem: ``x + lif(norm(conv( lif(norm(conv(x))) )))``, ``ratio`` times wider inside."""

    starts_stream = False

    def __init__(self, parts: Parts, shape: Shape, ratio: int) -> None:
        super().__init__()
        inner = shape._replace(channels=ratio * shape.channels)
        self.conv1 = ConvNormLIF(parts, shape, inner.channels)
        self.conv2 = ConvNormLIF(parts, inner, shape.channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x))

    def stream_writers(self) -> list[str]:
        """Returns the names of the neurons whose output enters the stream."""
        return ["conv2.lif"]


class PooledSpikes(nn.Module):
    """The last neuron of the S-Transformer: ``lif( mean over the image )``, [T, B, C, H, W] -> [T, B, C, 1, 1].

    threshold: its starting V; None: that of the other neurons
    """

    def __init__(self, parts: Parts, shape: Shape, threshold: float | None = None) -> None:
        super().__init__()
        self.lif = parts.make_neuron(Shape(shape.channels, 1, 1), threshold)

    def forward(self, x: Tensor) -> Tensor:
        return self.lif(x.mean((-2, -1), keepdim=True))

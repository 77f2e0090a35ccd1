"""The membrane-shortcut block (Hu et al., 2021): spikes only inside the branch; the residual stream is a current."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.blocks.shortcut import changes_shape, shortcut
from steadyspike.models.parts import Parts, Shape


class MSBlock(nn.Module):
    """``norm(conv(lif2(norm(conv(lif1(x)))))) + shortcut(x)``: spike first, add real currents.

    Spikes are never added to each other, so V can always be folded into the convolution after each neuron. The 1x1
    shortcut takes real values.

    pool_shortcut: reduce the shortcut's resolution by average pooling instead of a stride (MS-ResNet-104).
    """

    def __init__(
        self, parts: Parts, shape: Shape, channels: int, stride: int = 1, *, pool_shortcut: bool = False
    ) -> None:
        super().__init__()
        out = shape.conv(channels, stride)
        self.lif1 = parts.make_neuron(shape)
        self.conv1 = ConvNorm(parts, shape, channels, stride=stride)
        self.lif2 = parts.make_neuron(out)
        self.conv2 = ConvNorm(parts, out, channels, residual=True)
        if pool_shortcut and changes_shape(shape, channels, stride):
            self.shortcut: nn.Module = ConvNorm(parts, shape, channels, kernel=1, residual=True)
            pool = nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False)
            self.shortcut.conv = nn.Sequential(pool, self.shortcut.conv)
        else:
            self.shortcut = shortcut(parts, shape, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1.spikes(self.lif1(x), self.lif2)) + self.shortcut(x)

    def last_norm(self) -> nn.Module:
        """Returns the norm whose scale starts at zero, so that the branch is silent at the start."""
        return self.conv2.norm

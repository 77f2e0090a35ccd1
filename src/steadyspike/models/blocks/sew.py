"""The spike-element-wise block (Fang et al., 2021): the shortcut is added after the last neuron."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.blocks.shortcut import changes_shape
from steadyspike.models.parts import Parts, Shape


def spikes_of(neuron: nn.Module, out: Tensor) -> Tensor:
    """Returns S in {0, 1} of a neuron layer's output; the output itself if the layer has no method ``spikes``."""
    spikes = getattr(neuron, "spikes", None)
    return out if spikes is None else spikes(out)


# g(stream, branch output, S of the branch) -> stream
CONNECTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda stream, out, s: stream + out,
    "and": lambda stream, out, s: stream * s,
    "iand": lambda stream, out, s: stream * (1 - s),
}


class SEWBlock(nn.Module):
    """``g( shortcut(x), lif2(norm(conv(lif1(norm(conv(x)))))) )``: spike, then combine.

    connect: with ``"add"``, the stream is the sum of the outputs of all neurons that write to it. With TrSG these
        outputs are V*S, and the sum is an integer times V only if their V are tied (`models.streams`). ``"and"`` and
        ``"iand"`` multiply the stream by the branch's S or 1 - S, not by V*S. The stream then stays binary, times the V
        of its first writer.
    A shortcut that changes the shape has its own neuron and starts a new stream.
    """

    def __init__(self, parts: Parts, shape: Shape, channels: int, stride: int = 1, *, connect: str = "add") -> None:
        super().__init__()
        if connect not in CONNECTS:
            raise ValueError(f"unknown connect {connect!r}; known: {', '.join(CONNECTS)}")
        self.connect = connect
        self.branch1 = ConvNormLIF(parts, shape, channels, stride=stride)
        self.branch2 = ConvNormLIF(parts, shape.conv(channels, stride), channels)
        self.starts_stream = changes_shape(shape, channels, stride)
        self.shortcut: nn.Module = (
            ConvNormLIF(parts, shape, channels, kernel=1, stride=stride) if self.starts_stream else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch2(self.branch1(x))
        s = out if self.connect == "add" else spikes_of(self.branch2.lif, out)
        return CONNECTS[self.connect](self.shortcut(x), out, s)

    def last_norm(self) -> nn.Module:
        """Returns the norm at the end of the branch; with a scale of 0 the block starts as its shortcut."""
        return self.branch2.conv_norm.norm

    @property
    def gate_bias(self) -> float | None:
        """The bias of `last_norm` at such a start: 1 for "and", whose branch must then always fire; otherwise None."""
        return 1.0 if self.connect == "and" else None

    def stream_writers(self) -> list[str]:
        """The names of the neurons that write to the stream: the shortcut's, if it has one, and the branch's."""
        return ["shortcut.lif"] * self.starts_stream + ["branch2.lif"]

    def extra_repr(self) -> str:
        return f"connect={self.connect!r}"

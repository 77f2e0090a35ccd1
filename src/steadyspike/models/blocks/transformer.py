"""Transformer blocks of two kinds: the residual stream is either a sum of spikes or a current."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.blocks.attention.projected import ProjectedAttention
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.initial_potential import MPInit


class BatchAsTime(nn.Module):
    """A neuron that scans all samples of a batch one after the other, as if they were time steps. A known defect.

    QKFormer's published code does this in the last neuron of its self-attention. A sample's result then depends on the
    samples before it. This class is for comparison only (``legacy_tb_lif=True``); `check_model` reports it.
    """

    def __init__(self, neuron: nn.Module) -> None:
        super().__init__()
        if isinstance(getattr(neuron, "init", None), MPInit):
            raise ValueError(
                "legacy_tb_lif scans the batch as time, so MP-Init's mean after T steps has no meaning; "
                "use a neuron with init='zero'"
            )
        self.neuron = neuron

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(x.flatten(0, 1).unsqueeze(1)).squeeze(1).unflatten(0, tuple(x.shape[:2]))


class SpikeSumBlock(nn.Module):
    """``x + lif(attention(x))``, then ``x + mlp(x)``; the stream is a sum of spikes (Spikformer, QKFormer).

    attention, mlp: modules on [T, B, C, H, W]; ``mlp`` ends in a neuron ``fc2.lif``
    """

    starts_stream = False

    def __init__(
        self, parts: Parts, shape: Shape, attention: nn.Module, mlp: nn.Module, *, batch_as_time: bool = False
    ) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        neuron = parts.make_neuron(shape)
        self.lif = BatchAsTime(neuron) if batch_as_time else neuron

    def forward(self, x: Tensor) -> Tensor:
        attention = self.attention
        if isinstance(attention, ProjectedAttention):
            x = x + attention.spikes(x, self.lif)
        else:
            x = x + self.lif(attention(x))
        return x + self.mlp(x)

    def stream_writers(self) -> list[str]:
        """Returns the names of the neurons whose output enters the stream."""
        return ["lif.neuron" if isinstance(self.lif, BatchAsTime) else "lif", "mlp.fc2.lif"]


class CurrentBlock(nn.Module):
    """``x + attention(lif(x))``, then ``mlp(x)``, which adds x itself; the stream is a current (Spikingformer, SDT)."""

    def __init__(self, parts: Parts, shape: Shape, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.lif = parts.make_neuron(shape)
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attention(self.lif(x)))

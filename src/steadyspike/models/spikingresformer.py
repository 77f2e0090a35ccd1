"""SpikingResformer (Shi et al., 2024): three stages of dual attention and group-wise MLPs on a stream of currents."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from steadyspike.models.assemble import Init, assemble
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.dual import DualAttention
from steadyspike.models.blocks.mlp import GroupMLP
from steadyspike.models.blocks.stages import block_counts
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.blocks.tokens import SpikeFirstConv
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.nn.whole import whole_number

PATCHES = (4, 2, 1)


class DualBlock(nn.Module):
    """``x + attention(x)``, then the group-wise MLP, which adds its own input; both start with a neuron."""

    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attention(x))


def spikingresformer(
    task: Task,
    parts: Parts,
    *,
    heads: Sequence[int] = (1, 3, 6),
    head_width: int = 64,
    depth: Sequence[int] = (1, 2, 3),
    mlp_ratio: float = 4.0,
    small_stem: bool = False,
    attn_v_init: float | None = None,
    init: Init = "trunc_all",
) -> SpikingNet:
    """SpikingResformer: stem (conv7x7 of stride 2, norm, max-pooling), three stages, mean of the currents, one layer.

    heads: number of heads of each stage; a stage has ``heads * head_width`` channels at width 1, and the MLP's 3x3
        convolution has groups of ``head_width``
        depth: number of blocks of each stage
    small_stem: conv3x3 of stride 1 without pooling (CIFAR)
    attn_v_init: starting V of the attention neurons; None: that of the other neurons (1.0 in the published code)
    """
    width = parts.channels(head_width)
    counts, head_counts = block_counts(depth, 3, "depth"), block_counts(heads, 3, "heads")
    first = head_counts[0] * width
    kernel, stride = (3, 1) if small_stem else (7, 2)
    stem = Stem(parts, task.image, first, kernel, stride, neuron=False, pool=not small_stem)
    body, shape = nn.Sequential(), stem.shape
    for stage, (count, number, patch) in enumerate(zip(counts, head_counts, PATCHES)):
        if stage:
            down = SpikeFirstConv(parts, shape, number * width, stride=2)
            body.append(down)
            shape = down.shape
        body.extend(
            _blocks(parts, shape, AttentionPlan(number, v_init=attn_v_init, bias=False), patch, mlp_ratio, count)
        )
    return assemble(task, parts, (stem, body, shape), init=init, head_bias=False)


def _blocks(parts: Parts, shape: Shape, plan: AttentionPlan, patch: int, ratio: float, count: int) -> list[nn.Module]:
    group = plan.head_width(shape.channels)
    return [
        DualBlock(DualAttention(parts, shape, plan, patch), GroupMLP(parts, shape, ratio, group))
        for _ in range(whole_number(count, "depth"))
    ]


for _name, _heads, _width in (
    ("ti", (1, 3, 6), 64), ("s", (1, 4, 8), 64), ("m", (1, 6, 12), 64), ("l", (2, 8, 16), 64)
):  # fmt: skip
    register(
        f"spikingresformer_{_name}",
        Entry(
            spikingresformer, "spikingresformer", 1000, 3, (224, 224), options={"heads": _heads, "head_width": _width}
        ),
    )
register(
    "spikingresformer_cifar", Entry(spikingresformer, "spikingresformer", 10, 3, (32, 32), options={"small_stem": True})
)
register(
    "spikingresformer_gesture",
    Entry(spikingresformer, "spikingresformer", 11, 3, (64, 64), options={"head_width": 32, "small_stem": True}),
)
register(
    "spikingresformer_tiny",
    Entry(
        spikingresformer, "spikingresformer", 10, 3, (16, 16), 1 / 8,
        {"heads": (1, 2, 2), "depth": (1, 1, 1), "mlp_ratio": 2.0, "small_stem": True},
    ),
)  # fmt: skip

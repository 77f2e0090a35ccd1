"""S-Transformer, the spike-driven transformer (Yao et al., 2023): attention by masks and sums, stream of currents."""

from __future__ import annotations

from torch import nn

from steadyspike.models.assemble import Init, assemble
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.spike_driven import SpikeDrivenAttention
from steadyspike.models.blocks.conv import ConvNormLIF, pool_spikes
from steadyspike.models.blocks.mlp import CurrentMLP
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.blocks.tokens import CurrentTokens, PooledSpikes, pool_flags
from steadyspike.models.blocks.transformer import CurrentBlock
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.nn.whole import whole_number


def sdt(
    task: Task,
    parts: Parts,
    *,
    dim: int = 384,
    depth: int = 8,
    heads: int = 8,
    mlp_ratio: float = 4.0,
    pools: str = "1111",
    erode: bool = False,
    attn_v_init: float | None = 0.5,
    head_v_init: float | None = None,
    bias: bool = True,
    init: Init = "trunc_conv",
) -> SpikingNet:
    """S-Transformer: three conv-norm-spike layers, currents as tokens, ``depth`` blocks, mean, a neuron, one layer.

    erode: see `SpikeDrivenAttention`; on for event data. ``heads`` has an effect only with ``erode``.
    head_v_init: starting threshold of the last neuron; None: that of the other neurons (as published). Its current is a
        mean over the whole image and may be too small for V = 1 at the start; `check_model` then reports it. The other
    options are as in `spikformer`; the attention has no scale.
    """
    plan = AttentionPlan(heads, v_init=attn_v_init, bias=bias)
    flags = pool_flags(pools)
    stem = Stem(parts, task.image, parts.channels(dim // 8), pool=flags[0])
    body, shape = nn.Sequential(), stem.shape
    for divisor, pool in zip((4, 2), flags[1:3]):
        layer = ConvNormLIF(parts, shape, parts.channels(dim // divisor))
        body.append(layer)
        shape = layer.shape
        if pool:
            body.append(pool_spikes())
            shape = shape.conv(shape.channels, 2)
    tokens = CurrentTokens(parts, shape, parts.channels(dim), pool=flags[3])
    body.append(tokens)
    shape = tokens.shape
    for _ in range(whole_number(depth, "depth")):
        attention = SpikeDrivenAttention(parts, shape, plan, erode=erode)
        mlp = CurrentMLP(parts, shape, mlp_ratio, bias=bias, inner_residual=True)
        body.append(CurrentBlock(parts, shape, attention, mlp))
    body.append(PooledSpikes(parts, shape, head_v_init))
    return assemble(task, parts, (stem, body, Shape(shape.channels, 1, 1)), init=init)


for _depth, _dim in ((8, 384), (8, 512), (10, 512), (8, 768)):
    register(f"sdt_{_depth}_{_dim}", Entry(sdt, "sdt", 1000, 3, (224, 224), options={"depth": _depth, "dim": _dim}))
for _dim in (256, 512):
    register(
        f"sdt_cifar_2_{_dim}", Entry(sdt, "sdt", 10, 3, (32, 32), options={"depth": 2, "dim": _dim, "pools": "0011"})
    )
register(
    "sdt_dvs", Entry(sdt, "sdt", 10, 2, (64, 64), options={"depth": 2, "dim": 256, "pools": "0011", "erode": True})
)
_TINY = {"depth": 1, "dim": 256, "heads": 2, "pools": "1100", "attn_v_init": 0.4, "head_v_init": 0.3, "bias": False}
register("sdt_tiny", Entry(sdt, "sdt", 10, 3, (16, 16), 1 / 8, _TINY))

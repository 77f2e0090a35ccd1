"""Spikingformer (Zhou et al., 2023): a transformer whose branches spike and whose residual stream is a current."""

from __future__ import annotations

from torch import nn

from steadyspike.models.assemble import Init, assemble
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.mlp import CurrentMLP
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.blocks.tokens import SpikeFirstConv, pool_flags
from steadyspike.models.blocks.transformer import CurrentBlock
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task
from steadyspike.nn.whole import whole_number


def spikingformer(
    task: Task,
    parts: Parts,
    *,
    dim: int = 384,
    depth: int = 8,
    heads: int = 8,
    mlp_ratio: float = 4.0,
    pools: str = "1111",
    attn_scale: float = 0.125,
    attn_v_init: float | None = 0.5,
    bias: bool = True,
    init: Init = "trunc_linear",
) -> SpikingNet:
    """Spikingformer: conv-norm, four spike-(pool)-conv-norm layers, ``depth`` blocks, mean of the currents, one layer.

    Spikes are never added to each other, so V can always be folded without tied thresholds. The options are as in
    `spikformer`.
    """
    plan = AttentionPlan(heads, attn_scale, attn_v_init, bias=bias)
    stem = Stem(parts, task.image, parts.channels(dim // 8), neuron=False)
    body, shape = nn.Sequential(), stem.shape
    for divisor, pool in zip((4, 2, 1, 1), pool_flags(pools)):
        layer = SpikeFirstConv(parts, shape, parts.channels(dim // divisor), pool=pool)
        body.append(layer)
        shape = layer.shape
    for _ in range(whole_number(depth, "depth")):
        mlp = CurrentMLP(parts, shape, mlp_ratio, bias=bias)
        body.append(CurrentBlock(parts, shape, SelfAttention(parts, shape, plan, residual=True), mlp))
    return assemble(task, parts, (stem, body, shape), init=init)


_CIFAR = {"dim": 384, "depth": 4, "heads": 12, "pools": "0011"}
_DVS = {"dim": 256, "depth": 2, "heads": 16}
_TINY = {"dim": 256, "depth": 1, "heads": 2, "pools": "1100", "attn_scale": 0.6, "bias": False}

for _dim in (384, 512, 768):
    register(
        f"spikingformer_8_{_dim}", Entry(spikingformer, "spikingformer", 1000, 3, (224, 224), options={"dim": _dim})
    )
for _name, _options in (("", {}), ("_4_256", {"dim": 256, "heads": 8}), ("_2_384", {"depth": 2})):
    register(
        f"spikingformer_cifar{_name}",
        Entry(spikingformer, "spikingformer", 10, 3, (32, 32), options={**_CIFAR, **_options}),
    )
register("spikingformer_dvs", Entry(spikingformer, "spikingformer", 10, 2, (128, 128), options=_DVS))
register("spikingformer_tiny", Entry(spikingformer, "spikingformer", 10, 3, (16, 16), 1 / 8, _TINY))

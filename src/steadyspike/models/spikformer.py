"""Spikformer (Zhou et al., 2023), and an experimental Spikformer V2: self-attention, stream of added spikes."""

from __future__ import annotations

from torch import nn

from steadyspike.models.assemble import Init, assemble
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.blocks.mlp import SpikeMLP
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.blocks.tokens import ExpansionBlock, PositionConv, conv_tokens
from steadyspike.models.blocks.transformer import SpikeSumBlock
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.nn.whole import whole_number


def _encoder(
    parts: Parts, body: nn.Sequential, shape: Shape, plan: AttentionPlan, depth: int, ratio: float, position: bool
) -> None:
    """Appends the positional convolution and ``depth`` blocks."""
    if position:
        body.append(PositionConv(parts, shape))
    for _ in range(whole_number(depth, "depth")):
        mlp = SpikeMLP(parts, shape, ratio, bias=plan.bias)
        body.append(SpikeSumBlock(parts, shape, SelfAttention(parts, shape, plan), mlp))


def spikformer(
    task: Task,
    parts: Parts,
    *,
    dim: int = 384,
    depth: int = 8,
    heads: int = 8,
    mlp_ratio: float = 4.0,
    pools: str = "1111",
    pool_first: bool = False,
    position: bool = True,
    attn_scale: float = 0.125,
    attn_v_init: float | None = 0.5,
    qkv_bias: bool = False,
    bias: bool = True,
    tie_stream_threshold: bool = False,
    init: Init = "trunc_linear",
) -> SpikingNet:
    """Spikformer: four conv-norm-spike layers with poolings, positional convolution, ``depth`` blocks, mean, one layer.

    dim: channels of a token at width 1
    pools, pool_first: see `conv_tokens`
    position: whether to use the positional convolution
    attn_scale, attn_v_init, qkv_bias, bias: see `AttentionPlan`
    tie_stream_threshold: one threshold for all neurons that write to the stream (2 + 2 depth neurons)
    """
    plan = AttentionPlan(heads, attn_scale, attn_v_init, qkv_bias, bias)
    stem, body, shape = conv_tokens(parts, task.image, dim, pools, pool_first=pool_first)
    _encoder(parts, body, shape, plan, depth, mlp_ratio, position)
    return assemble(task, parts, (stem, body, shape), init=init, tie=tie_stream_threshold)


def spikformer_v2(
    task: Task,
    parts: Parts,
    *,
    dim: int = 512,
    depth: int = 8,
    heads: int = 8,
    mlp_ratio: float = 4.0,
    stem_ratio: int = 4,
    position: bool = True,
    attn_scale: float = 0.125,
    attn_v_init: float | None = 0.5,
    bias: bool = True,
    tie_stream_threshold: bool = False,
    init: Init = "trunc_linear",
) -> SpikingNet:
    """Experimental: Spikformer with a stem of stride-2 convolutions and expansion blocks instead of poolings.

    No code of Spikformer V2 was published and the stem's layout is not known. This function follows a third party's
    reconstruction (a stride-2 convolution and one expansion block per stage); its size is not the published one.

    stem_ratio: factor by which the expansion blocks increase the channels

    The other options are as in `spikformer`.
    """
    plan = AttentionPlan(heads, attn_scale, attn_v_init, bias=bias)
    stem = Stem(parts, task.image, parts.channels(dim // 8), stride=2)
    ratio = whole_number(stem_ratio, "stem_ratio")
    body, shape = nn.Sequential(ExpansionBlock(parts, stem.shape, ratio)), stem.shape
    for divisor in (4, 2, 1):
        layer = ConvNormLIF(parts, shape, parts.channels(dim // divisor), stride=2)
        shape = layer.shape
        body.extend([layer, ExpansionBlock(parts, shape, ratio)])
    _encoder(parts, body, shape, plan, depth, mlp_ratio, position)
    return assemble(task, parts, (stem, body, shape), init=init, tie=tie_stream_threshold)


IMAGENET, CIFAR, DVS = (1000, 3, (224, 224)), (10, 3, (32, 32)), (10, 2, (128, 128))
_CIFAR = {"dim": 384, "depth": 4, "heads": 12, "pools": "0011", "qkv_bias": True, "init": "trunc_tokens"}
_DVS = {"dim": 256, "depth": 2, "heads": 16, "attn_scale": 0.25}
_TINY = {"dim": 256, "depth": 1, "heads": 2, "attn_scale": 0.6, "bias": False}

for _dim in (384, 512, 768):
    register(f"spikformer_8_{_dim}", Entry(spikformer, "spikformer", *IMAGENET, options={"dim": _dim}))
    register(f"spikformer_v2_8_{_dim}", Entry(spikformer_v2, "spikformer_v2", *IMAGENET, options={"dim": _dim}))
register("spikformer_cifar", Entry(spikformer, "spikformer", *CIFAR, options=_CIFAR))
register("spikformer_dvs", Entry(spikformer, "spikformer", *DVS, options=_DVS))
register("spikformer_tiny", Entry(spikformer, "spikformer", 10, 3, (16, 16), 1 / 8, {**_TINY, "pools": "1100"}))
register(
    "spikformer_v2_tiny",
    Entry(spikformer_v2, "spikformer_v2", 10, 3, (32, 32), 1 / 8, {**_TINY, "stem_ratio": 1, "init": "default"}),
)

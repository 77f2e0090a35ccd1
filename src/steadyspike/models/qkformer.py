"""QKFormer (Zhou et al., 2024): three stages, token attention in the first two, self-attention in the last."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from steadyspike.models.assemble import Init, assemble
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.attention.token_qk import TokenQK
from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.blocks.mlp import SpikeMLP
from steadyspike.models.blocks.stages import block_counts
from steadyspike.models.blocks.stem import Stem
from steadyspike.models.blocks.tokens import PatchEmbed
from steadyspike.models.blocks.transformer import SpikeSumBlock
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Task

# The layers before the blocks, for each form: the stem, plain layers, and the rows of the patch embeddings. Every layer
# is written as (divisor of dim, True if it is pooled before its neuron).
Layer = tuple[int, bool]
FORMS: dict[str, tuple[Layer, list[Layer], list[list[Layer]]]] = {
    "imagenet": (
        (8, True),
        [],
        [[(4, True), (4, False)], [(2, True), (2, False)], [(1, True), (1, False)]],
    ),
    "cifar": ((8, False), [], [[(4, False)], [(2, False), (2, True)], [(1, False), (1, True)]]),
    "dvs": ((16, False), [(8, True)], [[(4, True), (2, True)], [(1, False), (1, True)]]),
}


def _shared(parts: Parts, full: int, heads: int) -> int:
    """Returns the channels of a stage; in a narrow network they are rounded to a multiple of the heads."""
    channels = parts.channels(full)
    return channels if parts.width == 1 else -(-channels // heads) * heads


def qkformer(
    task: Task,
    parts: Parts,
    *,
    form: str = "imagenet",
    dim: int = 384,
    depth: Sequence[int] = (1, 2, 7),
    heads: int = 6,
    mlp_ratio: float = 4.0,
    attn_scale: float = 0.125,
    attn_v_init: float | None = 0.5,
    bias: bool = True,
    tie_stream_threshold: bool = False,
    legacy_tb_lif: bool = False,
    init: Init = "trunc_linear",
) -> SpikingNet:
    """QKFormer: patch embedding and blocks per stage, mean over the image, one layer. Each stage has its own stream.

    form: the patch embeddings of ``"imagenet"``, ``"cifar"`` (three stages) or ``"dvs"`` (two stages)
    dim: channels of the last stage at width 1
    depth: blocks of each stage; the last stage has self-attention, the
        others token attention. heads: the same in all stages; below width 1, channels are rounded up
        to a multiple of it.
    legacy_tb_lif: reproduce the defect of the published code, see `BatchAsTime`; needs a neuron without MP-Init
    tie_stream_threshold: one threshold for all neurons that write to one stream

    The other options are as in `spikformer`.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; known: {', '.join(FORMS)}")
    plan = AttentionPlan(heads, attn_scale, attn_v_init, bias=bias)
    (divisor, pool), plain, embeddings = FORMS[form]
    stem = Stem(parts, task.image, parts.channels(dim // divisor), pool=pool, pool_first=True)
    body, shape = nn.Sequential(), stem.shape
    for divisor, pool in plain:
        layer = ConvNormLIF(parts, shape, parts.channels(dim // divisor), pool=pool)
        body.append(layer)
        shape = layer.shape
    counts = block_counts(depth, len(embeddings), "depth")
    for row, count in zip(embeddings, counts):
        embed = PatchEmbed(parts, shape, [(_shared(parts, dim // divisor, heads), pool) for divisor, pool in row])
        body.append(embed)
        shape, last = embed.shape, row is embeddings[-1]
        for _ in range(count):
            attention = (SelfAttention if last else TokenQK)(parts, shape, plan)
            mlp = SpikeMLP(parts, shape, mlp_ratio, bias=bias)
            body.append(SpikeSumBlock(parts, shape, attention, mlp, batch_as_time=last and legacy_tb_lif))
    return assemble(task, parts, (stem, body, shape), init=init, tie=tie_stream_threshold)


_DVS = {"form": "dvs", "dim": 256, "depth": (1, 1), "heads": 16}
_TINY = {
    "form": "cifar",
    "dim": 256,
    "depth": (1, 1, 1),
    "heads": 2,
    "attn_scale": 1.0,
    "bias": False,
}

for _dim, _heads in ((384, 6), (512, 8), (768, 12)):
    register(
        f"qkformer_10_{_dim}", Entry(qkformer, "qkformer", 1000, 3, (224, 224), options={"dim": _dim, "heads": _heads})
    )
register(
    "qkformer_cifar",
    Entry(qkformer, "qkformer", 10, 3, (32, 32), options={"form": "cifar", "depth": (1, 1, 2), "heads": 8}),
)
register("qkformer_dvs", Entry(qkformer, "qkformer", 10, 2, (128, 128), options={**_DVS, "mlp_ratio": 1.0}))
register("qkformer_gesture", Entry(qkformer, "qkformer", 11, 2, (128, 128), options=_DVS))
register("qkformer_tiny", Entry(qkformer, "qkformer", 10, 3, (8, 8), 1 / 8, _TINY))

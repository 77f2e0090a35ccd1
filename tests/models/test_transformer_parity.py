"""The transformers of SpikingJelly 2.0 with copied weights: the same logits, the same gradients.

Differences: SpikingJelly pools before the neurons of Spikformer's stem (ours with ``pool_first=True``),
has no biases where the official code has some and biases where it has none (idle before a batch norm; set to 0 here),
and one neuron for q, k and v (the same as three while V and tau are fixed). It has no S-Transformer for event data.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike import models
from steadyspike.core.surrogate import Sigmoid
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.attention.token_qk import TokenQK
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.nn.neuron import neurons

pytestmark = pytest.mark.peer

NEURON = partial(ss.LIF, gradient="as", surrogate=Sigmoid(0.25), reset="hard", init="zero", learn=())
# Not 0.5 and 0.125: products of spikes would meet the threshold exactly, and rounding would decide who fires.
ATTENTION_V, SCALE = 0.47, 0.13
Pair = tuple[nn.Parameter, nn.Parameter, slice]  # ours, theirs, and which rows of theirs


@pytest.fixture(scope="module")
def sj():
    pytest.importorskip("spikingjelly", reason="SpikingJelly is not installed")
    from spikingjelly import activation_based
    from spikingjelly.activation_based import functional, neuron, surrogate  # noqa: F401
    from spikingjelly.activation_based.model import qkformer, spike_driven_transformer, spikformer  # noqa: F401

    return activation_based


def pairs_of(ours: ConvNorm, conv: nn.Module, norm: nn.Module, rows: slice = slice(None)) -> Iterator[Pair]:
    for mine, theirs in ((ours.conv.weight, conv.weight), (ours.norm.weight, norm.weight), (ours.norm.bias, norm.bias)):
        yield mine, theirs, rows


def fused(layers: list[ConvNorm], container: nn.Module) -> Iterator[Pair]:
    """q, k, v (or q, k) of ours and their one convolution."""
    width = layers[0].conv.weight.shape[0]
    for i, layer in enumerate(layers):
        yield from pairs_of(layer, container[0], container[1], slice(i * width, (i + 1) * width))


def attention_pairs(ours: SelfAttention | TokenQK, theirs: nn.Module) -> Iterator[Pair]:
    if isinstance(ours, SelfAttention):
        yield from fused([ours.q.conv_norm, ours.k.conv_norm, ours.v.conv_norm], theirs.qkv_conv_bn)
    else:
        yield from fused([ours.q.conv_norm, ours.k.conv_norm], theirs.qk_conv_bn)
    yield from pairs_of(ours.proj, theirs.proj_conv_bn[0], theirs.proj_conv_bn[1])


def compare(sj, ours: nn.Module, theirs: nn.Module, pairs: list[Pair], x: Tensor) -> None:
    """Copies weights, then compares logits and the gradient of every weight, in training and evaluation mode."""
    ours.double()
    theirs.double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in neurons(ours).values():
            attention = abs(layer.threshold.item() - ATTENTION_V) < 1e-3
            layer.set_constant("threshold", [ATTENTION_V if attention else 1.0])
        for p in theirs.parameters():
            if p.ndim == 1:
                # Norms that let enough spikes through.
                p.uniform_(1.0, 2.0, generator=generator)
        for module in theirs.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.bias is not None:
                module.bias.zero_()  # ours have none
        for mine, other, rows in pairs:
            mine.copy_(other[rows].view_as(mine))
    for training in (True, False):
        ours.train(training), theirs.train(training)
        results = []
        for model in (ours, theirs):
            model.zero_grad()
            out = model(x)
            out = out.mean(0) if out.ndim == 3 else out
            (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
            results.append(out.detach())
        sj.functional.reset_net(theirs)
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)
        assert results[0].std() > 0
        for mine, other, rows in pairs:
            assert mine.grad.any()
            torch.testing.assert_close(mine.grad, other.grad[rows].view_as(mine), rtol=1e-7, atol=1e-10)


def their_options(sj) -> dict[str, object]:
    def node(**options: object) -> nn.Module:
        return sj.neuron.LIFNode(tau=2.0, surrogate_function=sj.surrogate.Sigmoid(4.0), step_mode="m")

    return {"spiking_neuron": node}


def set_attention(theirs: nn.Module) -> None:
    for module in theirs.modules():
        if hasattr(module, "attn_lif"):
            module.attn_lif.v_threshold = ATTENTION_V
        if hasattr(module, "scale"):
            module.scale = SCALE


def clip(side: int) -> Tensor:
    """Frames, not a static image: that goes through our first norm once, whose running variance is then of B images."""
    return torch.randn(3, 2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("form", ["contiguous_format", "channels_last"])  # q, k, v as three layers, and as one
def test_spikformer(sj, form: str) -> None:
    ours = models.create(
        "spikformer_cifar", image_size=16, timesteps=3, neuron=NEURON, dim=32, depth=2, heads=2, pool_first=True,
        qkv_bias=False, bias=False, attn_scale=SCALE, attn_v_init=ATTENTION_V,
    )  # fmt: skip
    theirs = sj.model.spikformer.Spikformer(
        T=3, img_size_h=16, img_size_w=16, patch_size=4, num_classes=10, embed_dims=32, num_heads=2, depths=2,
        **their_options(sj),
    )  # fmt: skip
    set_attention(theirs)
    stem = [ours.stem, *list(ours.body)[:3], ours.body[3].conv]
    stages = [*theirs.patch_embed.stages, theirs.patch_embed.positional_encoding]
    pairs = [p for a, b in zip(stem, stages) for p in pairs_of(a.conv_norm, b.conv_bn.block[0], b.conv_bn.block[1])]
    for mine, other in zip(list(ours.body)[4:], theirs.blocks):
        pairs += attention_pairs(mine.attention, other.attn)
        pairs += pairs_of(mine.mlp.fc1.conv_norm, other.mlp.fc1[0], other.mlp.fc1[1])
        pairs += pairs_of(mine.mlp.fc2.conv_norm, other.mlp.fc2[0], other.mlp.fc2[1])
    pairs += [
        (ours.head.fc.weight, theirs.head.weight, slice(None)),
        (ours.head.fc.bias, theirs.head.bias, slice(None)),
    ]
    compare(sj, ours.to(memory_format=getattr(torch, form)), theirs, pairs, clip(16))


def test_qkformer(sj) -> None:
    ours = models.create(
        "qkformer_10_384", num_classes=10, image_size=32, timesteps=3, neuron=NEURON, dim=32, depth=(1, 1, 1), heads=2,
        bias=False, attn_scale=SCALE, attn_v_init=ATTENTION_V,
    )  # fmt: skip
    theirs = sj.model.qkformer.QKFormer(
        T=3, num_classes=10, embed_dims=32, num_heads=(2, 2, 2), depths=(1, 1, 1), **their_options(sj)
    )
    set_attention(theirs)
    first, *others = theirs.patch_embed1, theirs.patch_embed2, theirs.patch_embed3
    pairs = list(pairs_of(ours.stem.conv_norm, first.conv1, first.bn1))
    rows = [[(first.conv2, first.bn2), (first.conv3, first.bn3)]]
    rows += [[(e.conv1, e.bn1), (e.conv2, e.bn2)] for e in others]
    stages = (theirs.stage1, theirs.stage2, theirs.stage3)
    for i, (row, embed, stage) in enumerate(zip(rows, (first, *others), stages)):
        mine, block = ours.body[2 * i], ours.body[2 * i + 1]
        for layer, (conv, norm) in zip(mine.row, row):
            pairs += pairs_of(layer.conv_norm, conv, norm)
        pairs += pairs_of(mine.shortcut.conv_norm, embed.shortcut[0], embed.shortcut[1])
        pairs += attention_pairs(block.attention, stage[0].attn)
        pairs += pairs_of(block.mlp.fc1.conv_norm, stage[0].mlp.fc1, stage[0].mlp.bn1)
        pairs += pairs_of(block.mlp.fc2.conv_norm, stage[0].mlp.fc2, stage[0].mlp.bn2)
    pairs += [
        (ours.head.fc.weight, theirs.head.weight, slice(None)),
        (ours.head.fc.bias, theirs.head.bias, slice(None)),
    ]
    compare(sj, ours, theirs, pairs, clip(32))


@pytest.mark.parametrize("ratio", [2.0, 1.0])
def test_sdt(sj, ratio: float) -> None:
    ours = models.create(
        "sdt_8_384", num_classes=10, image_size=16, timesteps=3, neuron=NEURON, dim=32, depth=2, heads=2,
        mlp_ratio=ratio, pools="1001", bias=False, attn_v_init=ATTENTION_V,
    )  # fmt: skip
    theirs = sj.model.spike_driven_transformer.SpikeDrivenTransformer(
        T=3, num_classes=10, embed_dims=32, num_heads=2, depths=2, mlp_ratio=ratio, pooling_stat="1001",
        **their_options(sj),
    )  # fmt: skip
    set_attention(theirs)
    embed = theirs.patch_embed
    tokens = ours.body[2]
    row = (ours.stem, ours.body[0], ours.body[1])
    pairs = [p for a, b in zip(row, embed.stages) for p in pairs_of(a.conv_norm, b[0], b[1])]
    pairs += pairs_of(tokens.conv_norm, embed.final_stage[0], embed.final_stage[1])
    pairs += pairs_of(tokens.position, embed.rpe_conv, embed.rpe_bn)
    for mine, other in zip(list(ours.body)[3:5], theirs.blocks):
        a, b = mine.attention, other.attn
        for layer, conv, norm in ((a.q, b.q_conv, b.q_bn), (a.k, b.k_conv, b.k_bn), (a.v, b.v_conv, b.v_bn)):
            pairs += pairs_of(layer.conv_norm, conv, norm)
        pairs += pairs_of(a.proj, b.proj_conv, b.proj_bn)
        pairs += pairs_of(mine.mlp.fc1, other.mlp.fc1, other.mlp.bn1)
        pairs += pairs_of(mine.mlp.fc2, other.mlp.fc2, other.mlp.bn2)
    pairs += [
        (ours.head.fc.weight, theirs.head.weight, slice(None)),
        (ours.head.fc.bias, theirs.head.bias, slice(None)),
    ]
    compare(sj, ours, theirs, pairs, clip(16))

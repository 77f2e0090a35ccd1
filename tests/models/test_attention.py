"""Attention of spikes: both orders of the product, each kind against its formula, firing rates on S."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.dual import DualAttention
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.attention.spike_driven import SpikeDrivenAttention
from steadyspike.models.blocks.attention.token_qk import TokenQK
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import cheaper_order, heads_of, image_of, spike_attention

SHAPE = Shape(8, 4, 6)
PLAN = AttentionPlan(heads=2, scale=0.5, v_init=0.4)
LOUD = partial(ss.LIF, threshold=0.3, tau=1.5, init="zero")


def spikes(rate: float = 0.4, seed: int = 0, shape: tuple[int, ...] = (3, 2, *SHAPE)) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate).float()


@pytest.mark.parametrize(("channels", "tokens"), [(4, 9), (9, 4), (16, 16)])
def test_both_orders_give_the_same_whole_numbers_and_gradients(channels: int, tokens: int) -> None:
    results = []
    for order in ("vk", "kq", "auto"):
        q, k, v = (spikes(0.5, i, (3, 2, 2, channels, tokens)).requires_grad_() for i in range(3))
        z = spike_attention(q, k, v, 0.25, order)
        z.backward(spikes(0.5, 5, tuple(z.shape)))
        results.append((z.detach(), q.grad, k.grad, v.grad))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))
    z, (q, k, v) = results[0][0], (spikes(0.5, i, (3, 2, 2, channels, tokens)) for i in range(3))
    naive = torch.einsum("tbhdn,tbhdm,tbhem->tbhen", q, k, v) * 0.25
    torch.testing.assert_close(z, naive)


def test_the_cheaper_order_is_chosen_by_the_shape() -> None:
    assert cheaper_order(32, 196) == "vk" and cheaper_order(64, 16) == "kq"
    with pytest.raises(ValueError, match="unknown order 'qk'"):
        spike_attention(*[spikes()] * 3, 1.0, "qk")


@pytest.mark.parametrize("channels_last", [False, True])
def test_heads_and_back_keep_the_layout(channels_last: bool) -> None:
    x = torch.randn(3, 2, *SHAPE)
    if channels_last:
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (3, 2))
    tokens = heads_of(x, 2)
    assert tokens.shape == (3, 2, 2, 4, 24) and tokens.data_ptr() == x.data_ptr()
    back = image_of(tokens, x)
    assert torch.equal(back, x) and back.stride() == x.stride()


def test_self_attention_is_its_formula() -> None:
    layer, x = SelfAttention(Parts(LOUD), SHAPE, PLAN), spikes()
    q, k, v = (heads_of(part(x), 2).mT for part in (layer.q, layer.k, layer.v))
    attention = q @ k.mT
    z = (attention @ v * 0.5).mT.reshape(3, 2, *SHAPE)
    torch.testing.assert_close(layer(x), layer.proj(layer.lif(z)))
    assert layer.lif.threshold.item() == pytest.approx(0.4) and z.any()


def test_token_attention_is_its_formula() -> None:
    layer, x = TokenQK(Parts(LOUD), SHAPE, PLAN), spikes()
    q, k = layer.q(x), layer.k(x)
    gate = layer.lif(torch.stack([q[:, :, :4].sum(2), q[:, :, 4:].sum(2)], 2))
    y = torch.cat([gate[:, :, :1] * k[:, :, :4], gate[:, :, 1:] * k[:, :, 4:]], 2)
    torch.testing.assert_close(layer(x), layer.proj(y))
    assert y.any() and not gate.all()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("erode", [False, True])
def test_spike_driven_attention_is_its_formula(erode: bool, channels_last: bool) -> None:
    """Gradients too: a pooling gives the gradient of a tie to the first, so that the order of the axes matters."""
    torch.manual_seed(1)
    layer, x = SpikeDrivenAttention(Parts(LOUD), SHAPE, PLAN, erode=erode).double(), spikes(0.5).double()
    if channels_last:
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (3, 2))
    pool = nn.MaxPool3d((1, 3, 3), 1, (0, 1, 1)) if erode else nn.Identity()

    def tokens(y: Tensor) -> Tensor:
        """[T, B, heads, N, d], as the published code lays them out."""
        return y.flatten(3).mT.reshape(3, 2, 24, 2, 4).transpose(2, 3)

    q, k, v = tokens(layer.q(x)), tokens(pool(layer.k(x))), tokens(pool(layer.v(x)))
    kv = pool(k * v).sum(3, keepdim=True)
    mask = layer.lif(kv.flatten(2).view(3, 2, 8, 1, 1)).view_as(kv)
    y = pool(q * mask).transpose(3, 4).reshape(3, 2, *SHAPE)
    ours, theirs = layer(x), layer.proj(y)
    torch.testing.assert_close(ours, theirs)
    assert y.any()
    g = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    weights = list(layer.parameters())
    for mine, other in zip(*(torch.autograd.grad(out, weights, g) for out in (ours, theirs))):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gradient", ["trsg", "rs"])
@pytest.mark.parametrize("channels", [None, "channel"])
def test_dual_attention_has_unit_variance_whatever_v_is(gradient: str, channels: str | None) -> None:
    currents: dict[float, Tensor] = {}
    for v in (0.2, 1.0):
        torch.manual_seed(0)
        neuron = ss.nn.neuron_factory(
            "lif", threshold=v, gradient=gradient, init="zero", channelwise=channels is not None
        )
        layer = DualAttention(Parts(neuron), SHAPE, AttentionPlan(2, v_init=None, bias=False), 2).double()
        nn.init.normal_(layer.y.conv.weight)  # large compared with the norm's eps, which does not scale with V
        seen: list[Tensor] = []
        layer.lif_attention.register_forward_pre_hook(lambda m, args, seen=seen: seen.append(args[0].detach()))
        layer(v * 3 * torch.randn(4, 64, *SHAPE, generator=torch.Generator().manual_seed(1)).double())
        currents[v] = seen[0]
    # The same spikes with every V: V*S must not show.
    torch.testing.assert_close(currents[0.2], currents[1.0], rtol=1e-3, atol=1e-3)
    assert 0.5 < currents[1.0].std() < 2.0


def test_dual_attention_is_its_formula() -> None:
    layer = DualAttention(Parts(partial(ss.LIF, threshold=0.5)), SHAPE, AttentionPlan(2, v_init=None), 2).eval()
    x = torch.randn(3, 2, *SHAPE) * 2
    for rate, value in ((layer.rate, 0.3), (layer.rate_attention, 0.2)):
        rate.rate.fill_(value)
        rate.batches.fill_(1)
    out = layer.lif(x)
    s, y = heads_of(out / 0.5, 2), layer.y(out).flatten(3)
    first, second = (torch.stack([y[:, :, i : i + 4], y[:, :, 8 + i : 12 + i]], 2) for i in (0, 4))
    current = torch.einsum("tbhdl,tbhdn->tbhln", first, s) / (0.3 * 4) ** 0.5
    actual = layer.lif_attention(current.flatten(3)).view_as(current) / 0.5
    z = torch.einsum("tbhdl,tbhln->tbhdn", second, actual) / (0.2 * 6) ** 0.5
    torch.testing.assert_close(layer(x), layer.proj(layer.lif_out(z.reshape(3, 2, *SHAPE))), rtol=1e-4, atol=1e-5)


def test_wrong_plans_say_why() -> None:
    with pytest.raises(ValueError, match="heads=3 cannot divide 8 channels equally; heads may be 1, 2, 4, 8"):
        SelfAttention(Parts(), SHAPE, AttentionPlan(heads=3))
    with pytest.raises(ValueError, match="patches of 4x4, but the image is 4x6 here"):
        DualAttention(Parts(), SHAPE, PLAN, 4)

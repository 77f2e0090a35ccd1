"""q, k and v of self-attention as one operator: the numbers of three layers, and three layers if a hook reads one."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.models.blocks import conv_group
from steadyspike.models.blocks.attention import self_attention
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.attention.product import spike_attention
from steadyspike.nn.attention.rows_product import heads_per_slice, rows_attention
from steadyspike.nn.neuron import neurons

SHAPE = Shape(16, 6, 4)
NEURONS = {
    "trsg": partial(ss.LIF, threshold=0.6),
    "channelwise": partial(ss.LIF, threshold=0.6, channels=16),
    "original": partial(
        ss.LIF, threshold=0.6, reset=ss.Reset("hard", detach=True), gradient="as", init="zero", learn=()
    ),
}


def layer(neuron: str = "trsg", heads: int = 4, scale: float = 0.25, bias: bool = False) -> SelfAttention:
    torch.manual_seed(0)
    made = SelfAttention(Parts(NEURONS[neuron]), SHAPE, AttentionPlan(heads, scale, 0.4, qkv_bias=bias))
    for number, m in enumerate(neurons(made).values()):
        with torch.no_grad():  # so that a mix-up of the layers would show
            m.set_constant("threshold", torch.full_like(m.threshold, 0.5 + 0.1 * number).tolist())
    return ss.use_events(made).to(memory_format=torch.channels_last)


def sums_of_spikes(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """[T, B, C, H, W] in channels_last format, 0, 1 and 2."""
    x = torch.randint(0, 3, (3, 2, *SHAPE), generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (3, 2))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether the layers ran as one."""
    seen: list[bool] = []

    def spy(layers: object, x: Tensor) -> Tensor | None:
        out = conv_group.grouped_spikes(layers, x)  # type: ignore[arg-type]
        seen.append(out is not None)
        return out

    monkeypatch.setattr(self_attention, "grouped_spikes", spy)
    return seen


def apart(made: SelfAttention) -> SelfAttention:
    """A copy whose layers run one by one, because a hook sees them."""
    made = copy.deepcopy(made)
    made.k.register_forward_hook(lambda *seen: None)
    return made


def step(made: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = made(x)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    return out.detach(), list(torch.autograd.grad(out, [x, *made.parameters()], g))


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_step_is_that_of_three_layers(neuron: str, bias: bool, groups: list[bool]) -> None:
    one = layer(neuron, bias=bias).double()
    three = apart(one)
    for seed in range(2):
        x = sums_of_spikes(seed, torch.float64)
        (out, grads), (expected, wanted_grads) = step(one, x), step(three, x)
        assert groups.pop(0) and not groups.pop(0)
        torch.testing.assert_close(out, expected)
        assert out.stride() == expected.stride() and out.any()
        for mine, other in zip(grads, wanted_grads):
            torch.testing.assert_close(mine, other)
    for (name, mine), other in zip(one.state_dict().items(), three.state_dict().values()):
        torch.testing.assert_close(mine, other, msg=name)
    one.eval(), three.eval()
    with torch.no_grad():
        torch.testing.assert_close(one(x), three(x))
    assert groups == [True, False]


def test_recomputed_it_trains_the_same(groups: list[bool]) -> None:
    plain, x = layer().double(), sums_of_spikes(0, torch.float64)
    again = copy.deepcopy(plain)
    y = x.clone(memory_format=torch.preserve_format).requires_grad_()
    checkpoint(again, y, use_reentrant=False).square().sum().backward()
    z = x.clone(memory_format=torch.preserve_format).requires_grad_()
    plain(z).square().sum().backward()
    torch.testing.assert_close(y.grad, z.grad)
    for (name, mine), other in zip(again.state_dict().items(), plain.state_dict().values()):
        torch.testing.assert_close(mine, other, msg=name)
    assert groups == [True] * 3


def test_what_makes_them_three() -> None:
    x = sums_of_spikes()
    for touch in (
        lambda m: m.q.register_forward_hook(lambda *seen: None),
        lambda m: m.v.conv_norm.conv.register_forward_pre_hook(lambda *seen: None),
        lambda m: m.k.lif.register_forward_hook(lambda *seen: None),
        lambda m: m.k.conv_norm.norm.eval(),
        lambda m: setattr(m.q, "lif", ss.LIF(reset="hard")),
        lambda m: setattr(m.q.conv_norm, "norm", nn.Identity()),
        lambda m: setattr(m.q.lif, "forward", m.q.lif.forward),
        ss.use_dense,
    ):
        made = layer()
        assert conv_group.grouped_spikes((made.q, made.k, made.v), x) is not None
        touch(made)
        assert conv_group.grouped_spikes((made.q, made.k, made.v), x) is None
    made = layer()
    for other in (x.contiguous(), x.bfloat16(), x[:1].expand(3, -1, -1, -1, -1)):
        assert conv_group.grouped_spikes((made.q, made.k, made.v), other) is None


def test_evaluation_with_gradients() -> None:
    """The node has gradients in evaluation, too: those of the three layers one by one."""
    x, made = sums_of_spikes().requires_grad_(), layer().eval()
    parts = (made.q, made.k, made.v)
    parameters = [p for part in parts for p in part.parameters()]
    grouped, single = conv_group.grouped_spikes(parts, x), torch.cat([part(x) for part in parts], 2)
    assert grouped is not None
    torch.testing.assert_close(grouped, single)
    g = torch.linspace(-1, 1, single.numel()).view_as(single).to(single.dtype)
    for got, want in zip(*(torch.autograd.grad(out, [x, *parameters], g) for out in (grouped, single)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "channels", "together"), [(1, 16, 1), (4, 12, 4), (8, 12, 4), (6, 20, 2), (2, 64, 1)]
)
@pytest.mark.parametrize("scale", [0.25, 0.3, 1.0])
def test_rows_are_the_product_of_heads(heads: int, channels: int, together: int, scale: float) -> None:
    assert heads_per_slice(heads, channels) == together
    spikes = torch.rand(3, 10, 3 * heads * channels, generator=torch.Generator().manual_seed(0)) < 0.3
    qkv = spikes.double().requires_grad_()
    q, k, v = (part.unflatten(2, (heads, -1)).permute(0, 2, 3, 1) for part in qkv.chunk(3, 2))
    expected = spike_attention(q, k, v, scale).permute(0, 3, 1, 2).flatten(2)
    out = rows_attention(qkv, heads, scale)
    assert torch.equal(out, expected)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    mine, other = (torch.autograd.grad((o * g).square().sum(), qkv, create_graph=True)[0] for o in (out, expected))
    torch.testing.assert_close(mine, other)
    second, wanted_second = (torch.autograd.grad(d.square().sum(), qkv)[0] for d in (mine, other))
    torch.testing.assert_close(second, wanted_second)

"""Norm and scan as one node, compared with the layers one by one and with the reference in float64."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.kernels.spikes.note import known_spikes
from steadyspike.nn import fused_norm
from steadyspike.nn.fused_norm import norm_neuron, repeated_norm_neuron
from steadyspike.nn.initial_potential import ConstantInit, InitialPotential, MPInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.norm.tdbn import TDBN
from tests.kernels.built import needs_kernel
from tests.nn.norm_cases import (
    EXTRAS,
    assert_close,
    assert_same_statistics,
    in_one,
    inputs,
    layers,
    one_by_one,
    run,
    step,
)

pytestmark = needs_kernel


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("channels", [None, 6])
@pytest.mark.parametrize("gradient", ["trsg", "rs", "as"])
def test_against_the_reference_in_float64(
    fused: list[bool], layout: str, extra: str, channels: int | None, gradient: str
) -> None:
    parts = layers(extra, torch.float64, "factor", channels=channels, gradient=gradient)
    truth = copy.deepcopy(parts)
    truth[1].backend = "reference"  # type: ignore[assignment]
    tensors = inputs(extra, torch.float64, layout)
    got, want = step(in_one, parts, tensors), step(one_by_one, truth, tensors)
    assert fused == [extra == "norm"] and got["out"].any()
    assert_close(got, want, 1e-9, 1e-10)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("surrogate", ["rect", "triangle", "arctan", "sigmoid", "dspike"])
def test_float32_agrees_to_rounding_and_keeps_the_same_statistics(layout: str, surrogate: str) -> None:
    parts = layers("spikes", surrogate=surrogate, reset="hard" if surrogate == "arctan" else "soft")
    plain = copy.deepcopy(parts)
    tensors = inputs("spikes", torch.float32, layout)
    got, want = step(in_one, parts, tensors), step(one_by_one, plain, tensors)
    assert (got["out"] != want["out"]).float().mean() < 1e-3
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(got[name], want[name]), name
    if torch.equal(got["out"], want["out"]):
        assert_close(got, want, 2e-4, 2e-5)


def test_whoever_looks_between_sees_both_layers(fused: list[bool]) -> None:
    (y,) = inputs("none")
    seen: list[object] = []
    for look in ("norm", "neuron", "tap"):
        pair = layers("none")
        seen.clear()
        if look == "tap":
            pair[1].taps["me"] = ss.nn.neuron.Tap(lambda *a: seen.append(a))  # type: ignore[union-attr, operator]
        else:
            pair[look == "neuron"].register_forward_hook(lambda *a: seen.append(a))  # type: ignore[index]
        norm_neuron(pair[0], pair[1], y)
        assert len(seen) == 1 and not fused


def test_a_tap_that_needs_no_current_sees_the_one_operator(fused: list[bool]) -> None:
    (y,) = inputs("none")
    pair, seen = layers("none"), []
    plain = copy.deepcopy(pair)
    pair[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(result), current=False)  # type: ignore[union-attr, operator]
    out = norm_neuron(pair[0], pair[1], y)
    assert fused == [False] and seen[0].out is out and seen[0].u.shape == y.shape[1:] and seen[0].u.requires_grad
    plain[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(result))  # type: ignore[union-attr, operator]
    norm_neuron(plain[0], plain[1], y)
    torch.testing.assert_close(seen[0].active, seen[1].active, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen[0].u, seen[1].u, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("extra", "size"), [("none", 8), ("spikes", 8), ("norm", 8), ("norm", 5)])
def test_who_looks_at_the_current_changes_no_output(fused: list[bool], layout: str, extra: str, size: int) -> None:
    """Outputs and statistics to the last bit, gradients to rounding; steps of whole words and of broken ones."""
    parts = layers(extra, scaling="factor")
    watched = copy.deepcopy(parts)
    seen: list[Tensor] = []
    watched[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(x))  # type: ignore[union-attr, operator]
    for _ in range(3):
        tensors = inputs(extra, torch.float32, layout, size)
        want, got = step(in_one, parts, tensors), step(in_one, watched, tensors)
        assert torch.equal(got["out"], want["out"])
        assert_same_statistics(got, want)
        assert_close(got, want, 2e-4, 2e-5)
    assert fused == [extra == "norm"] * 3 and len(seen) == 3


def test_half_precision_takes_both_layers(fused: list[bool]) -> None:
    (y,) = inputs("none")
    pair = layers("none")
    norm_neuron(pair[0], pair[1], y.bfloat16())
    assert not fused
    norm_neuron(pair[0], pair[1], y)
    assert fused


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("extra", ["spikes", "norm"])
def test_checkpointing_and_no_grad_give_the_same_bits(fused: list[bool], extra: str, reentrant: bool) -> None:
    """Outputs, gradients, running statistics and MP-Init's mean of several steps."""
    parts = layers(extra)
    again, silent = copy.deepcopy(parts), copy.deepcopy(parts)
    tensors = inputs(extra, torch.float32, "channels_last")
    for _ in range(3):
        want = step(in_one, parts, tensors)
        got = step(partial(checkpoint, in_one, use_reentrant=reentrant), again, tensors)
        with torch.no_grad():
            assert torch.equal(run(in_one, silent, tensors), want["out"])
        for name, value in want.items():
            assert torch.equal(got[name], value), name
        for name, buffer in silent.named_buffers():
            assert torch.equal(buffer, want[name]), name
    assert fused == [extra == "norm"] * 12


@pytest.mark.parametrize("extra", ["spikes", "norm"])
def test_batched_gradients(fused: list[bool], extra: str) -> None:
    parts = layers(extra, torch.float64)
    tensors = [t.requires_grad_() for t in inputs(extra, torch.float64)]
    out, expected = run(in_one, parts, tensors), [*tensors, *parts.parameters()]
    g = torch.randn(2, *out.shape, dtype=torch.float64)
    batched = torch.autograd.grad(out, expected, g, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        for many, one in zip(batched, torch.autograd.grad(out, expected, g[i], retain_graph=True)):
            torch.testing.assert_close(many[i], one)
    assert fused


@pytest.mark.parametrize("extra", EXTRAS)
def test_gradients_of_gradients_are_refused(extra: str) -> None:
    tensors = [t.requires_grad_() for t in inputs(extra, torch.float64)]
    out = run(in_one, layers(extra, torch.float64), tensors)
    (first,) = torch.autograd.grad(out.sum(), tensors[-1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        first.sum().backward()


@pytest.mark.parametrize("name", ["resnet19_tiny", "sew_resnet34_tiny", "ms_resnet_tiny", "vgg9_tiny"])
def test_networks_step_as_before(fused: list[bool], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options = {"dropout": 0.0} if name in ("resnet19_tiny", "vgg9_tiny") else {}
    net = ss.models.create(name, image_size=32, **options)
    net = net.double().train()
    plain = copy.deepcopy(net)
    x = torch.randn(2, net.in_channels, 32, 32, dtype=torch.float64)
    out = net(x)
    out.sum().backward()
    assert fused
    monkeypatch.setattr(fused_norm, "fits", lambda *a: False)
    want = plain(x)
    want.sum().backward()
    torch.testing.assert_close(out, want)
    for (key, p), q in zip(net.named_parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-7, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")


def known_extra(dtype: torch.dtype, layout: str, channels: int | None = None) -> Tensor:
    """Spikes with their bits noted, as a neuron below writes them: steps of whole words."""
    below = ss.LIF(0.7, 2.0, channels=channels)
    x = torch.randn(5, 4, 6, 8, 8)
    if layout == "channels_last":
        x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (5, 4))
    with torch.no_grad():
        out = below(x)
    assert known_spikes(out) is not None and out.any()
    return out


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [None, 6])
def test_an_extra_that_is_spikes_is_read_as_bits(layout: str, channels: int | None) -> None:
    """The same bits everywhere as from its values, and the values are not kept for the backward."""
    extra = known_extra(torch.float32, layout, channels)
    pair = layers("none")
    other = copy.deepcopy(pair)
    y = torch.randn_like(extra)
    saved: list[int] = []

    def run(pair: nn.ModuleList, extra: Tensor) -> dict[str, Tensor]:
        saved.clear()
        leaf, into = y.clone(memory_format=torch.preserve_format).requires_grad_(), extra.detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
            out = norm_neuron(pair[0], pair[1], leaf, into)
        out.backward(torch.ones_like(out))
        named = {"out": out.detach(), "dy": leaf.grad, "dextra": into.grad}
        return named | {name: p.grad for name, p in pair.named_parameters()}  # type: ignore[return-value]

    got, sizes = run(pair, extra), sorted(saved)
    want = run(other, extra.clone(memory_format=torch.preserve_format))  # a copy has no bits
    assert sizes.count(y.numel()) == 1 and saved.count(y.numel()) == 2
    for name, value in want.items():
        assert torch.equal(got[name], value), name


def test_batches_of_gradients_with_an_extra_that_is_spikes() -> None:
    """The forward keeps its bits; the operators, which compute batches, get the values."""
    extra, parts = known_extra(torch.float32, "channels_last").requires_grad_(), layers("none")
    out = run(in_one, parts, [torch.randn_like(extra), extra])
    expected, g = [extra, *parts.parameters()], torch.randn(2, *out.shape)
    batched = torch.autograd.grad(out, expected, g, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        for many, one in zip(batched, torch.autograd.grad(out, expected, g[i], retain_graph=True)):
            torch.testing.assert_close(many[i], one, rtol=1e-4, atol=1e-4)


def test_an_extra_of_another_shape_is_added_as_it_is(fused: list[bool]) -> None:
    (y,), parts = inputs("none"), layers("none").eval()
    with torch.no_grad():
        got, want = (run(call, parts, [y, torch.full((1,), 0.3)]) for call in (in_one, one_by_one))
    assert torch.equal(got, want) and not fused


@pytest.mark.parametrize("reentrant", [False, True])
def test_bits_of_an_extra_and_checkpointing(reentrant: bool) -> None:
    extra = known_extra(torch.float32, "channels_last").requires_grad_()
    pair = layers("none")
    again, y = copy.deepcopy(pair), torch.randn_like(extra).requires_grad_()
    for call, layer in ((norm_neuron, pair), (checkpoint, again)):
        args = (layer[0], layer[1], y, extra)
        out = call(*args) if call is norm_neuron else checkpoint(norm_neuron, *args, use_reentrant=reentrant)
        out.sum().backward()
    for (name, p), q in zip(pair.named_parameters(), again.parameters()):
        assert torch.equal(p.grad, q.grad), name


NORMS = {
    "tdbn": lambda: TDBN(6),
    "scaled": lambda: TDBN(6, "factor", 0.7, 0.5),
    "no bias": lambda: TDBN(6, bias=False),
    "bn": lambda: ss.nn.norm.StepBN(6),
    "bntt": lambda: ss.nn.norm.BNTT(6, 7),
    "tebn": lambda: ss.nn.norm.TEBN(6, 7),
    "tab": lambda: ss.nn.norm.TAB(6, 7),
}


def evaluated_pair(norm: str, dtype: torch.dtype) -> nn.ModuleList:
    """With statistics and parameters that differ everywhere; norms per step have more steps than the input."""
    pair = layers("none", dtype)
    pair[0] = NORMS[norm]().to(dtype)
    with torch.no_grad():
        for name, t in pair[0].state_dict().items():
            if t.is_floating_point():
                t.uniform_(0.5, 2.0)
            if name in ("bias", "running_mean"):
                t.sub_(1.0)
    return pair.eval()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("extra", ["none", "spikes"])
@pytest.mark.parametrize("norm", NORMS)
def test_evaluation_against_the_reference(fused: list[bool], norm: str, extra: str, layout: str) -> None:
    tensors = inputs(extra, torch.float64, layout)
    pair = evaluated_pair(norm, torch.float64)
    truth = copy.deepcopy(pair)
    truth[1].backend = "reference"  # type: ignore[assignment]
    with torch.no_grad():
        got = run(in_one, pair, tensors)
    assert fused == [False]
    want = run(one_by_one, truth, tensors)
    assert got.any()
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", ["tdbn", "tab", "tebn"])
@pytest.mark.parametrize("extra_as", ["none", "bits", "values"])
def test_evaluation_gives_the_same_bits_whoever_looks(norm: str, extra_as: str) -> None:
    """Without gradients, with gradients, with taps and hooks on the neuron, after a deepcopy."""
    extra = None if extra_as == "none" else known_extra(torch.float32, "channels_last")
    extra = extra.clone(memory_format=torch.preserve_format) if extra_as == "values" else extra  # type: ignore[union-attr]
    y = torch.randn(5 * 4, 6, 8, 8).to(memory_format=torch.channels_last).unflatten(0, (5, 4))
    pair = evaluated_pair(norm, torch.float32)
    with torch.no_grad():
        want = norm_neuron(pair[0], pair[1], y, extra)
        assert known_spikes(want) is not None
        seen: list[object] = []
        watched = copy.deepcopy(pair)
        watched[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(x))  # type: ignore[union-attr, operator]
        assert torch.equal(norm_neuron(watched[0], watched[1], y, extra), want)
        hooked = copy.deepcopy(pair)
        hooked[1].register_forward_hook(lambda *a: seen.append(a))
        assert torch.equal(norm_neuron(hooked[0], hooked[1], y, extra), want)
    assert len(seen) == 2
    with torch.inference_mode():
        assert torch.equal(norm_neuron(pair[0], pair[1], y, extra), want)
    graded = norm_neuron(pair[0], pair[1], y, extra)
    assert graded.requires_grad and torch.equal(graded, want)
    graded.sum().backward()
    assert all(p.grad is not None for p in pair[0].parameters())


def test_evaluation_steps_aside(fused: list[bool]) -> None:
    """Hooks on the norm and a replaced forward see the two layers."""

    class Own(TDBN):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0

    (y,) = inputs("none")
    with torch.no_grad():
        pair = evaluated_pair("tdbn", torch.float32)
        assert not norm_neuron(Own(6).eval(), pair[1], y).any()
        seen: list[object] = []
        pair[0].register_forward_hook(lambda *a: seen.append(a))
        norm_neuron(pair[0], pair[1], y)
        assert len(seen) == 1
        for replaced, training in ((0, False), (0, True), (1, False), (1, True)):
            pair = evaluated_pair("tdbn", torch.float32)
            pair[0].train(training)
            pair[replaced].forward = torch.zeros_like
            want = copy.deepcopy(pair[1])(torch.zeros_like(y))  # the norm's zeros, or the neuron's own
            assert not want.any() and torch.equal(norm_neuron(pair[0], pair[1], y), want)


def test_a_frozen_norm_below_a_trained_neuron() -> None:
    """The neuron's statistics move as without the operator."""
    tensors = inputs("none", torch.float64)
    pair = evaluated_pair("tdbn", torch.float64)
    pair[1].train()
    plain = copy.deepcopy(pair)
    with torch.no_grad():
        run(in_one, pair, tensors)
        run(one_by_one, plain, tensors)
    torch.testing.assert_close(pair[1].running_mean, plain[1].running_mean)
    assert float(pair[1].running_mean) != pytest.approx(0.1)


@pytest.mark.parametrize("norm", ["bntt", "tebn", "tab"])
@pytest.mark.parametrize("trained", ["k", "extra"])
def test_a_frozen_norm_per_step_below_something_trained(norm: str, trained: str) -> None:
    """The node's backward has one scale for all steps; it would write past the end of its sums."""
    y, extra = inputs("spikes", torch.float64)
    pair = evaluated_pair(norm, torch.float64).requires_grad_(False)
    truth = copy.deepcopy(pair)
    truth[1].backend = "reference"  # type: ignore[assignment]
    grads = []
    for parts, call in ((pair, in_one), (truth, one_by_one)):
        other = extra.clone()
        leaf = (parts[1].k if trained == "k" else other).requires_grad_(True)
        run(call, parts, [y, other]).square().sum().backward()
        grads.append(leaf.grad)
    assert grads[1].any()
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("steps", [16, 20, 40])
def test_a_gradient_that_is_not_finite_spoils_only_its_channel(steps: int) -> None:
    """Also where the scan goes in parts of 16 steps, some of which have been added up when it is met."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(steps, 2, 8, 4, 4, generator=generator) * 2
    g = torch.randn(y.shape, generator=generator)
    g[3, 0, 0, 0, 0] = torch.inf
    actual = []
    for separate in (True, False):
        norm, neuron, x = TDBN(8), ss.LIF(), y.clone().requires_grad_()
        if separate:
            neuron.backend = "reference"
        out = neuron(norm(x)) if separate else norm_neuron(norm, neuron, x)
        actual.append(torch.autograd.grad(out, [x, norm.weight, norm.bias], g))
    (dx, *by_norm), (fused_dx, *fused_by_norm) = actual
    torch.testing.assert_close(fused_dx[:, :, 1:], dx[:, :, 1:], rtol=1e-4, atol=1e-5)
    for got, want in zip(fused_by_norm, by_norm):
        torch.testing.assert_close(got[1:], want[1:], rtol=1e-4, atol=1e-4)
        assert not got[0].isfinite()


class _MeanOfInput(InitialPotential):
    def potential(self, x: Tensor) -> Tensor:
        return x.mean().view(1)


@pytest.mark.parametrize("extra", [False, True])
def test_an_initial_potential_that_reads_its_input_gets_the_current(extra: bool) -> None:
    y = torch.randn(3, 2, 4, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 + 3
    more = torch.randn(3, 2, 4, 4, 4, generator=torch.Generator().manual_seed(1)) if extra else None
    fused, plain = ((TDBN(4), LIF(init=_MeanOfInput())) for _ in range(2))
    current = plain[0](y)
    expected = plain[1](current if more is None else current + more)
    torch.testing.assert_close(norm_neuron(*fused, y, more), expected)
    if not extra:
        fused, plain = ((TDBN(4), LIF(init=_MeanOfInput())) for _ in range(2))
        once = y[:1]
        expected = plain[1](plain[0](once).expand(5, *once.shape[1:]))
        torch.testing.assert_close(repeated_norm_neuron(*fused, once, 5), expected)


def test_only_a_potential_that_reads_its_input_has_the_current_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(ConstantInit):
        reads_input = False

        def potential(self, x: Tensor) -> Tensor:
            return torch.full((1,), 0.5)

    shown, original = [], fused_norm.shown_current
    monkeypatch.setattr(fused_norm, "shown_current", lambda *args: shown.append(0) or original(*args))
    for init, currents in ((MPInit(), 0), (ConstantInit(0.1), 0), (Half(), 0), (_MeanOfInput(), 1)):
        shown.clear()
        norm_neuron(TDBN(4), LIF(init=init), torch.randn(3, 2, 4, 4, 4))
        assert len(shown) == currents, type(init).__name__

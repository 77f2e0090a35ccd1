"""Norm and scan as one operator, beside the two layers one after the other and beside the reference in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn import norm_neuron as module
from steadyspike.nn.memory.transform import save_memory
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm_neuron import norm_neuron

MISSING = CpuBackend().why_not(torch.empty(0))
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every fused call."""
    calls: list[int] = []
    original = module._fused

    def counted(*args: object) -> Tensor:
        calls.append(1)
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_fused", counted)
    return calls


def layers(channels: int | None, dtype: torch.dtype, scaling: str = "none", **options: object) -> nn.ModuleList:
    torch.manual_seed(0)
    norm, neuron = TDBN(6, scaling, 0.7, 0.5), ss.LIF(0.6, 1.6, channels=channels, **options)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.2, 0.4)  # type: ignore[union-attr]
        neuron.init.running_mean.fill_(0.1)
    return nn.ModuleList([norm, neuron]).to(dtype)


def inputs(dtype: torch.dtype, layout: str, residual: str) -> tuple[Tensor, Tensor | None]:
    y = (torch.randn(5, 3, 6, 7, 8, dtype=torch.float64) * 2 + 3).to(dtype)
    extra = None if residual == "none" else (torch.rand(y.shape) < 0.2).to(dtype)
    if layout == "channels_last":
        y, extra = (
            None if t is None else t.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (5, 3))
            for t in (y, extra)
        )
    return y, extra  # type: ignore[return-value]


def step(call: Callable[..., Tensor], pair: nn.ModuleList, y: Tensor, extra: Tensor | None) -> dict[str, Tensor]:
    y = y.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    extra = None if extra is None else extra.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = call(pair[0], pair[1], y, extra)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)
    out.backward(g)
    named = {"out": out.detach(), "dy": y.grad}
    named |= {} if extra is None else {"dextra": extra.grad}
    named |= {name: p.grad for name, p in pair.named_parameters()}
    return named | dict(pair.named_buffers())  # type: ignore[return-value]


def one_after_the_other(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | None) -> Tensor:
    x = norm(y)
    return neuron(x if extra is None else x + extra)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("residual", ["none", "spikes"])
@pytest.mark.parametrize("channels", [None, 6])
@pytest.mark.parametrize("gradient", ["trsg", "rs", "as"])
def test_against_the_reference_in_float64(
    fused: list[int], layout: str, residual: str, channels: int | None, gradient: str
) -> None:
    pair = layers(channels, torch.float64, "factor", gradient=gradient)
    truth = copy.deepcopy(pair)
    truth[1].backend = "reference"  # type: ignore[assignment]
    y, extra = inputs(torch.float64, layout, residual)
    got, want = step(norm_neuron, pair, y, extra), step(one_after_the_other, truth, y, extra)
    assert fused == [1]
    assert got.keys() == want.keys() and got["out"].any()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("surrogate", ["rect", "triangle", "arctan", "sigmoid", "dspike"])
def test_float32_agrees_to_rounding_and_keeps_the_same_statistics(layout: str, surrogate: str) -> None:
    pair = layers(None, torch.float32, surrogate=surrogate, reset="hard" if surrogate == "arctan" else "soft")
    plain = copy.deepcopy(pair)
    y, extra = inputs(torch.float32, layout, "spikes")
    got, want = step(norm_neuron, pair, y, extra), step(one_after_the_other, plain, y, extra)
    assert (got["out"] != want["out"]).float().mean() < 1e-3
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(got[name], want[name]), name
    if torch.equal(got["out"], want["out"]):
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_whoever_looks_between_sees_both_layers(fused: list[int]) -> None:
    y, _ = inputs(torch.float32, "contiguous", "none")
    seen: list[object] = []
    for look in ("norm", "neuron", "tap"):
        pair = layers(None, torch.float32)
        seen.clear()
        if look == "tap":
            pair[1].taps["me"] = ss.nn.neuron.Tap(lambda *a: seen.append(a))  # type: ignore[union-attr, operator]
        else:
            pair[look == "neuron"].register_forward_hook(lambda *a: seen.append(a))  # type: ignore[index]
        norm_neuron(pair[0], pair[1], y)
        assert len(seen) == 1 and not fused


def test_a_tap_that_needs_no_current_sees_the_one_operator(fused: list[int]) -> None:
    y, _ = inputs(torch.float32, "contiguous", "none")
    pair, seen = layers(None, torch.float32), []
    plain = copy.deepcopy(pair)
    pair[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(result), current=False)  # type: ignore[union-attr, operator]
    out = norm_neuron(pair[0], pair[1], y)
    assert fused == [1] and seen[0].out is out and seen[0].u.shape == y.shape[1:] and not seen[0].u.requires_grad
    plain[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(result))  # type: ignore[union-attr, operator]
    norm_neuron(plain[0], plain[1], y)
    torch.testing.assert_close(seen[0].active, seen[1].active, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen[0].u, seen[1].u, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("residual", ["none", "spikes"])
@pytest.mark.parametrize("saving", [False, True])
def test_who_looks_at_the_current_changes_no_output(fused: list[int], layout: str, residual: str, saving: bool) -> None:
    """Outputs and statistics to the last bit, gradients to rounding, over several steps."""
    pair = layers(None, torch.float32, "factor")
    watched = copy.deepcopy(pair)
    seen: list[Tensor] = []
    watched[1].taps["me"] = ss.nn.neuron.Tap(lambda layer, x, u0, result: seen.append(x))  # type: ignore[union-attr, operator]
    if saving:
        save_memory(watched)
    for _ in range(3):
        y, extra = inputs(torch.float32, layout, residual)
        want, got = step(norm_neuron, pair, y, extra), step(norm_neuron, watched, y, extra)
        assert torch.equal(got["out"], want["out"])
        for name, value in want.items():
            if "running" in name or "tracked" in name:
                assert torch.equal(got[name], value), name
            torch.testing.assert_close(got[name], value, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert len(fused) == 3 and len(seen) == 3


def test_evaluation_and_half_precision_take_both_layers(fused: list[int]) -> None:
    y, _ = inputs(torch.float32, "contiguous", "none")
    pair = layers(None, torch.float32)
    norm_neuron(pair[0].eval(), pair[1], y)
    norm_neuron(pair[0].train(), pair[1], y.bfloat16())
    assert not fused
    norm_neuron(pair[0], pair[1], y)
    assert fused == [1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_and_no_grad_give_the_same_bits(fused: list[int], reentrant: bool) -> None:
    """Outputs, gradients, running statistics and MP-Init's mean of several steps."""
    pair = layers(None, torch.float32)
    again, silent = copy.deepcopy(pair), copy.deepcopy(pair)
    y, extra = inputs(torch.float32, "channels_last", "spikes")

    def recomputed(*args: object) -> Tensor:
        return checkpoint(norm_neuron, *args, use_reentrant=reentrant)

    for _ in range(3):
        want, got = step(norm_neuron, pair, y, extra), step(recomputed, again, y, extra)
        with torch.no_grad():
            assert torch.equal(norm_neuron(silent[0], silent[1], y, extra), want["out"])
        for name, value in want.items():
            assert torch.equal(got[name], value), name
        for name, buffer in silent.named_buffers():
            assert torch.equal(buffer, want[name]), name
    assert len(fused) == 3 * 4


def test_batched_gradients(fused: list[int]) -> None:
    pair = layers(None, torch.float64)
    y, extra = inputs(torch.float64, "contiguous", "spikes")
    y.requires_grad_()
    out = norm_neuron(pair[0], pair[1], y, extra)
    g = torch.randn(2, *out.shape, dtype=torch.float64)
    (batched,) = torch.autograd.grad(out, y, g, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        torch.testing.assert_close(batched[i], torch.autograd.grad(out, y, g[i], retain_graph=True)[0])
    assert fused


def test_gradients_of_gradients_are_refused() -> None:
    pair = layers(None, torch.float64)
    y, _ = inputs(torch.float64, "contiguous", "none")
    y.requires_grad_()
    (dy,) = torch.autograd.grad(norm_neuron(pair[0], pair[1], y).sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dy.sum().backward()


@pytest.mark.parametrize("name", ["resnet19_tiny", "sew_resnet34_tiny", "ms_resnet_tiny", "vgg9_tiny"])
@pytest.mark.parametrize("saving", [False, True])
def test_networks_step_as_before(fused: list[int], monkeypatch: pytest.MonkeyPatch, name: str, saving: bool) -> None:
    options = {"dropout": 0.0} if name in ("resnet19_tiny", "vgg9_tiny") else {}
    net = ss.models.create(name, image_size=32, **options)
    net = net.double().train()
    plain = copy.deepcopy(net)
    if saving:
        save_memory(net)
    x = torch.randn(2, net.in_channels, 32, 32, dtype=torch.float64)
    out = net(x)
    out.sum().backward()
    assert fused
    monkeypatch.setattr(module, "_fits", lambda *a: False)
    want = plain(x)
    want.sum().backward()
    torch.testing.assert_close(out, want)
    for (key, p), q in zip(net.named_parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-7, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")

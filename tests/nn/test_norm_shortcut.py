"""A shortcut's norm inside of the one operator of norm and scan, compared with the layers one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn import fused as module
from steadyspike.nn.fused_norm import Normed, norm_neuron
from steadyspike.nn.memory.track import MemoryTracker
from steadyspike.nn.norm import BNTT, TAB, TDBN, TEBN

MISSING = CpuBackend().why_not(torch.empty(0))
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
BUFFERS = ("running", "tracked")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with every call of the one operator, by whether it got a second norm."""
    calls: list[bool] = []
    original = module.fused_scan

    def counted(*args: object) -> object:
        if len(args) > 5:
            calls.append(args[-2] is not None)
        return original(*args)

    monkeypatch.setattr(module, "fused_scan", counted)
    return calls


def layers(dtype: torch.dtype, **options: object) -> nn.ModuleList:
    """Norm, neuron, and the shortcut's norm, which has another eps and scaling."""
    torch.manual_seed(0)
    norm, neuron = TDBN(6, "factor", 0.7, 0.5), ss.LIF(0.6, 1.6, **options)  # type: ignore[arg-type]
    second = TDBN(6, eps=1e-2)
    with torch.no_grad():
        for one in (norm, second):
            one.weight.uniform_(0.5, 1.5)
            one.bias.uniform_(-0.2, 0.4)  # type: ignore[union-attr]
        neuron.init.running_mean.fill_(0.1)
    return nn.ModuleList([norm, neuron, second]).to(dtype)


def inputs(dtype: torch.dtype, layout: str, size: int = 8) -> list[Tensor]:
    pair = [(torch.randn(5, 3, 6, 7, size, dtype=torch.float64) * s + 1).to(dtype) for s in (2, 1)]
    if layout == "contiguous":
        return pair
    return [t.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (5, 3)) for t in pair]


def in_one(norm: nn.Module, neuron: nn.Module, y: Tensor, second: nn.Module, side: Tensor) -> Tensor:
    return norm_neuron(norm, neuron, y, Normed(second, side))  # type: ignore[arg-type]


def one_by_one(norm: nn.Module, neuron: nn.Module, y: Tensor, second: nn.Module, side: Tensor) -> Tensor:
    return neuron(norm(y) + second(side))


def step(call: Callable[..., Tensor], parts: nn.ModuleList, tensors: list[Tensor]) -> dict[str, Tensor]:
    y, side = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors)
    out = call(parts[0], parts[1], y, parts[2], side)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)
    out.backward(g)
    named = {"out": out.detach(), "dy": y.grad, "dside": side.grad}
    named |= {name: p.grad for name, p in parts.named_parameters()}
    return named | dict(parts.named_buffers())  # type: ignore[return-value]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("gradient", ["trsg", "rs", "as"])
def test_against_the_reference_in_float64(fused: list[bool], layout: str, gradient: str) -> None:
    parts = layers(torch.float64, gradient=gradient)
    truth = copy.deepcopy(parts)
    truth[1].backend = "reference"  # type: ignore[assignment]
    tensors = inputs(torch.float64, layout)
    got, want = step(in_one, parts, tensors), step(one_by_one, truth, tensors)
    assert fused == [True] and got.keys() == want.keys() and got["out"].any()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("size", [8, 5])
def test_who_looks_at_the_current_changes_no_output(fused: list[bool], layout: str, size: int) -> None:
    """Outputs and statistics to the last bit, gradients to rounding; steps of whole words and of broken ones."""
    parts = layers(torch.float32)
    watched = copy.deepcopy(parts)
    watched[1].taps["me"] = ss.nn.neuron.Tap(lambda *a: None)  # type: ignore[union-attr, operator]
    for _ in range(3):
        tensors = inputs(torch.float32, layout, size)
        want, got = step(in_one, parts, tensors), step(in_one, watched, tensors)
        assert torch.equal(got["out"], want["out"])
        for name, value in want.items():
            if any(kind in name for kind in BUFFERS):
                assert torch.equal(got[name], value), name
            torch.testing.assert_close(got[name], value, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert fused == [True] * 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_and_no_grad_give_the_same_bits(fused: list[bool], reentrant: bool) -> None:
    parts = layers(torch.float32)
    again, silent = copy.deepcopy(parts), copy.deepcopy(parts)
    tensors = inputs(torch.float32, "channels_last")

    def recomputed(*args: object) -> Tensor:
        return checkpoint(in_one, *args, use_reentrant=reentrant)

    for _ in range(2):
        want, got = step(in_one, parts, tensors), step(recomputed, again, tensors)
        with torch.no_grad():
            assert torch.equal(in_one(silent[0], silent[1], tensors[0], silent[2], tensors[1]), want["out"])
        for name, value in want.items():
            assert torch.equal(got[name], value), name
        for name, buffer in silent.named_buffers():
            assert torch.equal(buffer, want[name]), name
    assert all(fused)


def test_batched_gradients_and_gradients_of_gradients() -> None:
    parts = layers(torch.float64)
    y, side = (t.requires_grad_() for t in inputs(torch.float64, "contiguous"))
    out = in_one(parts[0], parts[1], y, parts[2], side)
    expected = [y, side, *parts.parameters()]
    g = torch.randn(2, *out.shape, dtype=torch.float64)
    batched = torch.autograd.grad(out, expected, g, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        for many, one in zip(batched, torch.autograd.grad(out, expected, g[i], retain_graph=True)):
            torch.testing.assert_close(many[i], one)
    (dside,) = torch.autograd.grad(out.sum(), side, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dside.sum().backward()


def test_a_second_norm_that_does_not_fit_is_computed(fused: list[bool]) -> None:
    tensors = inputs(torch.float32, "contiguous")

    def hooked(parts: nn.ModuleList) -> None:
        parts[2].register_forward_hook(lambda *a: None)

    def frozen(parts: nn.ModuleList) -> None:
        parts[2].eval()

    for change in (hooked, frozen):
        parts = layers(torch.float32)
        change(parts)
        plain = copy.deepcopy(parts)
        got, want = step(in_one, parts, tensors), step(one_by_one, plain, tensors)
        assert (got["out"] != want["out"]).float().mean() < 1e-2
        assert torch.equal(got["2.running_mean"], want["2.running_mean"])
    assert fused == [False] * 2
    parts = layers(torch.float32).eval()
    in_one(parts[0], parts[1], tensors[0], parts[2], tensors[1])
    assert fused == [False] * 3


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_an_evaluation_without_gradients_computes_no_second_norm(fused: list[bool], layout: str) -> None:
    parts, tensors = layers(torch.float32), inputs(torch.float32, layout)
    in_one(parts[0], parts[1], tensors[0], parts[2], tensors[1])
    parts.eval()
    fused.clear()
    with torch.no_grad():
        got = in_one(parts[0], parts[1], tensors[0], parts[2], tensors[1])
        want = one_by_one(parts[0], parts[1], tensors[0], parts[2], tensors[1])
    assert fused == [True] and want.count_nonzero()
    assert (got != want).float().mean() < 1e-3


@pytest.mark.parametrize("kinds", [(TEBN, TEBN), (TDBN, TEBN), (TEBN, TDBN), (BNTT, TAB)])
def test_an_evaluation_with_values_per_step(kinds: tuple[type, type]) -> None:
    """One norm may be part of the node; the scan cannot add two maps with values per step."""
    neuron, (y, side), norms = ss.LIF().eval(), inputs(torch.float64, "contiguous"), []
    for kind in kinds:
        norm = (kind(6) if kind is TDBN else kind(6, 5)).double()
        for tensor in norm.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape) + 0.5)
        norms.append(norm.eval())
    with torch.no_grad():
        want = one_by_one(norms[0], neuron, y, norms[1], side)
        assert torch.equal(in_one(norms[0], neuron, y, norms[1], side), want) and want.any()


def test_a_network_keeps_no_output_of_a_shortcuts_norm(fused: list[bool]) -> None:
    net = ss.models.create("resnet19_tiny", image_size=32, dropout=0.0).to(memory_format=torch.channels_last)
    hooked = copy.deepcopy(net)
    for block in hooked.modules():
        if hasattr(block, "shortcut") and not isinstance(block.shortcut, nn.Identity):
            block.shortcut.register_forward_hook(lambda *a: None)
    x, live = torch.randn(4, 3, 32, 32), []
    for one in (net, hooked):
        with MemoryTracker() as tracker:
            out = one(x)
            live.append(tracker.live)
            del out
    assert sum(fused) == 2  # the first blocks of the second and third stage of the first network
    kept = sum(4 * 4 * channels * size * size * 4 for channels, size in ((16, 16), (32, 8)))
    assert live[1] - live[0] >= 0.9 * kept


@pytest.mark.parametrize("looks", ["nobody", "at the norm", "at the neuron"])
def test_a_norm_that_is_also_the_shortcuts_moves_its_statistics_in_one_order(fused: list[bool], looks: str) -> None:
    """The shortcut's batch first, with and without hooks: the newer batch weighs more."""
    norm, neuron, _ = layers(torch.float64)
    y, side = inputs(torch.float64, "contiguous")
    expected = copy.deepcopy(norm)
    expected(side), expected(y)
    if looks != "nobody":
        (norm if looks == "at the norm" else neuron).register_forward_hook(lambda *seen: None)
    in_one(norm, neuron, y, norm, side)
    assert fused == ([True] if looks == "nobody" else [])
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(norm.named_buffers())[name], buffer, msg=name)

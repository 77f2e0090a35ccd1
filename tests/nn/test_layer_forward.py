"""A layer's whole forward as one call of C++: what it may not leave out, and when it must not run."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

import steadyspike as ss
from steadyspike.kernels.scan.cpu import neuron_calls
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn import layer_forward as whole
from steadyspike.nn import neuron as module
from steadyspike.nn.parametrization import SIGMOID, SOFTPLUS

MISSING = CpuBackend().why_not(torch.empty(0))
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def current(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 2, 8)), generator=torch.Generator().manual_seed(0)).add_(0.5)


def runs_as_one(layer: ss.LIF, x: Tensor | None = None) -> bool:
    node = layer(current().requires_grad_() if x is None else x).grad_fn
    return node is not None and node.name() == "_LayerForwardBackward"


def gradients(layer: ss.LIF, x: Tensor) -> list[Tensor | None]:
    leaf = x.clone().requires_grad_()
    out = layer(leaf)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))
    return [out, leaf.grad, *layer.buffers(), *(p.grad for p in layer.parameters())]


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "layer_forward", lambda *a, **k: None)


def test_autograd_counts_the_change_of_the_mean() -> None:
    layer, w = ss.LIF(), torch.ones(1, requires_grad=True)
    loss, before = (layer.running_mean * w).sum(), layer.running_mean._version
    assert runs_as_one(layer) and layer.running_mean._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_backward_starts_where_the_forward_did() -> None:
    layer, x = ss.LIF(), current().requires_grad_()
    layer(x)
    want = copy.deepcopy(layer)
    out = layer(x)
    for _ in range(3):
        layer(x)  # the mean moves on
    (got,) = torch.autograd.grad(out.square().sum(), x)
    assert torch.equal(got, torch.autograd.grad(want(x).square().sum(), x)[0])


@pytest.mark.parametrize("channels", [None, 8])
@pytest.mark.parametrize("value", [-9.0, float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_batch_without_a_finite_mean(monkeypatch: pytest.MonkeyPatch, channels: int | None, value: float) -> None:
    x = current()
    x[:, :, 2] = value
    layers = []
    for _ in range(2):
        layer = ss.LIF(channels=channels)
        layer(current())
        layer(x)
        layers.append(layer)
        in_parts(monkeypatch)
    assert torch.equal(layers[0].running_mean, layers[1].running_mean) and layers[0].running_mean.isfinite().all()


@pytest.mark.parametrize("raw", [-1e9, 1e9, float("nan")])
@pytest.mark.parametrize("channels", [None, 8])
def test_a_parameter_out_of_its_range(monkeypatch: pytest.MonkeyPatch, raw: float, channels: int | None) -> None:
    for name in "kw":
        found = []
        for parts in (False, True):
            with monkeypatch.context() as patch:
                if parts:
                    in_parts(patch)
                layer = ss.LIF(channels=channels)
                with torch.no_grad():
                    getattr(layer, name)[-1] = raw
                found.append([*gradients(layer, current()), layer.k.detach(), layer.w.detach()])
        for got, want in zip(*found, strict=True):
            assert got is not None and want is not None and torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


def test_slopes_of_many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ and torch may round an exp differently: torch's own does, for many numbers and for few."""
    torch.manual_seed(0)
    layer = ss.LIF(channels=40)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p) * 8)
    other, x = copy.deepcopy(layer), current(4, 2, 40, 5)
    got = gradients(layer, x)
    in_parts(monkeypatch)
    want = gradients(other, x)
    for one, two in zip(got[:3], want[:3]):
        assert torch.equal(one, two)
    for one, two in zip(got[3:], want[3:]):
        torch.testing.assert_close(one, two, rtol=5e-7, atol=0)


class Shifted(ss.MPInit):
    def potential(self, x: Tensor) -> Tensor:
        return super().potential(x) + 0.25


class Still(ss.MPInit):
    def update(self, active: Tensor) -> None:
        self.seen = active


def test_potential_and_update_that_were_replaced_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_as_one(ss.LIF()) and runs_as_one(ss.LIF(init=0.2))
    assert not runs_as_one(ss.LIF(init=Shifted()))
    still = ss.LIF(init=Still())
    assert not runs_as_one(still) and still.init.seen.shape == (2, 1) and not still.running_mean.any()
    layer = ss.LIF()
    layer.init.update = lambda active: None  # type: ignore[method-assign]
    assert not runs_as_one(layer) and not layer.running_mean.any()
    monkeypatch.setattr(ss.MPInit, "potential", lambda self, x: torch.full((1,), 0.1))
    assert not runs_as_one(ss.LIF())


def test_an_init_that_is_any_module() -> None:
    class Own(torch.nn.Module):
        def potential(self, x: Tensor) -> Tensor:
            return torch.zeros(1)

        def update(self, active: Tensor) -> None:
            self.seen = active

    layer = ss.LIF()
    layer.init = Own()  # type: ignore[assignment]
    assert not runs_as_one(layer) and layer.init.seen.shape == (2, 1)


@pytest.mark.parametrize(("training", "init_training"), [(True, False), (False, True), (False, False), (True, True)])
def test_modes_of_layer_and_init(monkeypatch: pytest.MonkeyPatch, training: bool, init_training: bool) -> None:
    found = []
    for _ in range(2):
        layer = ss.LIF()
        layer(current())
        layer.train(training)
        layer.init.train(init_training)
        found.append([layer(current()), layer.running_mean])
        in_parts(monkeypatch)
    assert all(torch.equal(got, want) for got, want in zip(*found))


def test_frozen_shared_and_parametrized_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(torch.nn.Module):
        def forward(self, k: Tensor) -> Tensor:
            return 2 * k

    def make() -> ss.LIF:
        layer = ss.LIF(0.6)
        layer.w.requires_grad_(False)
        parametrize.register_parametrization(layer, "k", Twice())
        return layer

    got = gradients(make(), current())
    in_parts(monkeypatch)
    for one, two in zip(got, gradients(make(), current()), strict=True):
        assert (one is None) == (two is None) and (one is None or torch.equal(one, two))


def test_functional_call_uses_its_own_mean() -> None:
    layer = ss.LIF()
    mean, x = torch.full((1,), 0.4), current().requires_grad_()
    out = torch.func.functional_call(layer, {"init.running_mean": mean}, (x,))
    assert out.grad_fn.name() == "_LayerForwardBackward" and mean.item() != pytest.approx(0.4)
    assert not layer.running_mean.any()


def test_saved_tensors_that_get_hooks_later() -> None:
    layer, x = ss.LIF(channels=8), current().requires_grad_()
    want = gradients(copy.deepcopy(layer), x.detach())
    out = layer(x)
    for saved in out.grad_fn._raw_saved_tensors:
        saved.register_hooks(lambda t: t, lambda t: t.repeat_interleave(2, -1)[..., ::2])
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
    for got, expected in zip((x.grad, layer.k.grad, layer.w.grad), (want[1], *want[3:]), strict=True):
        torch.testing.assert_close(got, expected)


def test_batches_of_gradients() -> None:
    layer, x = ss.LIF(), current().requires_grad_()
    out, cotangents = layer(x), torch.randn(3, 4, 2, 8)
    leaves = (x, layer.k, layer.w)
    batched = torch.autograd.grad(out, leaves, cotangents, is_grads_batched=True, retain_graph=True)
    for i, g in enumerate(cotangents):
        for got, want in zip(batched, torch.autograd.grad(out, leaves, g, retain_graph=True), strict=True):
            torch.testing.assert_close(got[i], want)


def test_copies_and_pickles_run_as_one() -> None:
    layer = ss.LIF()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert runs_as_one(other)
        assert all(torch.equal(got, want) for got, want in zip(layer.parameters(), other.parameters()))


def test_who_looks_inside_gets_the_parts() -> None:
    layer = ss.LIF()
    seen = []
    layer.taps["test"] = module.Tap(lambda layer, x, u0, result: seen.append((u0.clone(), result.u)))
    assert not runs_as_one(layer) and seen[0][1].shape == (2, 8)


@torch.no_grad()
def test_without_gradients_and_in_inference_mode() -> None:
    layer, other = ss.LIF(), ss.LIF()
    want = layer(current())
    with torch.inference_mode():
        assert torch.equal(other(current()), want)
    assert torch.equal(layer.running_mean, other.running_mean) and want.any()
    layer.eval(), other.eval()
    with torch.inference_mode():
        assert torch.equal(other(current()), layer(current()))


def test_a_library_of_other_sources_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron_calls, "_ABI", 0)
    neuron_calls.why_no_neuron_calls.cache_clear()
    whole._plan.cache_clear()
    try:
        assert not runs_as_one(ss.LIF())
    finally:
        monkeypatch.undo()
        neuron_calls.why_no_neuron_calls.cache_clear()
        whole._plan.cache_clear()
    assert runs_as_one(ss.LIF())


def test_bad_arguments_are_refused() -> None:
    """By C++ itself, should Python ever pass them."""
    x, v = current(4, 2, 3), torch.ones(1)
    plan = whole._plan(
        (x.shape, x.stride(), x.dtype), v.shape, v.shape, None, ss.LIF().spec.codes, (1.0, 1.0, 1.0), None,
        (SOFTPLUS.native, SIGMOID.native),
    )  # fmt: skip
    assert plan is not None
    constants = neuron_calls.RunConstants(v, v / 2, v.data_ptr(), v.data_ptr())
    start = neuron_calls.Start(None, 0.3)
    assert neuron_calls.neuron_forward(plan, x, constants, start, plan.memory()) is not None
    wrong = plan._replace(fixed=plan.fixed[:56] + (9).to_bytes(8, "little") + plan.fixed[64:])  # a dtype that is none
    with pytest.raises(RuntimeError, match="out of range"):
        neuron_calls.neuron_forward(wrong, x, constants, start, plan.memory())
    wrong = plan._replace(fixed=(9).to_bytes(8, "little") + plan.fixed[8:])  # a link that is none
    with pytest.raises(RuntimeError, match="out of range"):
        neuron_calls.neuron_backward(wrong, x, constants, plan.memory(), x, True, True)


@pytest.mark.parametrize("init", ["zero", 0.3, "mp"])
def test_a_layer_without_memory_runs_where_the_device_is_set_for_all(init: str | float) -> None:
    """As the check of a recipe does, which builds a network of full size; a start is rounded by a tensor of its own."""
    with torch.device("meta"):
        assert ss.LIF(init=init)(torch.empty(2, 3, 4)).shape == (2, 3, 4)


def _same_as_reference(layer: ss.LIF, x: Tensor) -> None:
    other = copy.deepcopy(layer)
    if "constant" in layer.__dict__:
        other.constant = lambda name: ss.LIF.constant(other, name) * 0.5  # type: ignore[method-assign]
    other.backend = "reference"
    found = []
    for one in (layer, other):
        y = x.clone().requires_grad_()
        out = one(y)
        out.backward(torch.ones_like(out))
        found.append((out, y.grad, one.k.grad, one.running_mean))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_a_method_that_somebody_replaces_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one layer, and on the class; which methods a class has was looked at only when it was made."""
    x = torch.randn(4, 2, 3, 50, generator=torch.Generator().manual_seed(0)).add_(0.5)
    plain = ss.LIF()(x)
    layer = ss.LIF()
    layer.constant = lambda name: ss.LIF.constant(layer, name) * 0.5  # type: ignore[method-assign]
    assert not torch.equal(layer(x), plain)
    _same_as_reference(layer, x)
    before = ss.LIF.threshold.fget
    monkeypatch.setattr(module.Neuron, "threshold", property(lambda self: before(self) * 0.5))
    assert not torch.equal(ss.LIF()(x), plain)
    _same_as_reference(ss.LIF(), x)
    monkeypatch.undo()
    assert torch.equal(ss.LIF()(x), plain)
    calls = []
    run = module.Neuron.run
    monkeypatch.setattr(
        module.Neuron, "run", lambda self, *args, **options: calls.append(1) or run(self, *args, **options)
    )
    assert torch.equal(ss.LIF()(x), plain) and calls


def test_limits_of_a_subclass_are_kept() -> None:
    class Narrow(ss.LIF):
        def limit_constants(self) -> None:
            with torch.no_grad():
                self.k.clamp_(-0.1, 0.1)

    layer = Narrow(2.0)
    layer(torch.randn(4, 2, 3, 50))
    assert layer.k.abs().max() <= 0.1

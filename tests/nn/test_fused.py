"""The fused node of a layer: the same bits as the operator, what it may not leave out, and when it must not run."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

import steadyspike as ss
from steadyspike.kernels.scan import call, fused_job
from steadyspike.kernels.scan.contract import OutputGradients
from steadyspike.kernels.scan.cpu import neuron_calls
from steadyspike.nn import fused
from steadyspike.nn.neuron import Neuron, Tap
from steadyspike.nn.parametrization import SIGMOID, SOFTPLUS, TANH
from tests.kernels.built import needs_kernel

pytestmark = needs_kernel


def current(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 2, 8)), generator=torch.Generator().manual_seed(0)).add_(0.5)


def runs_as_one(layer: ss.LIF, x: Tensor | None = None) -> bool:
    out = layer(current().requires_grad_() if x is None else x)  # older torch forgets the node with its output
    return out.grad_fn is not None and out.grad_fn.name() == "_FusedBackward"


def gradients(layer: ss.LIF, x: Tensor) -> list[Tensor | None]:
    leaf = x.clone().requires_grad_()
    out = layer(leaf)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))
    return [out, leaf.grad, *layer.buffers(), *(p.grad for p in layer.parameters())]


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on layers run by the operator."""
    for module in (fused, call):
        monkeypatch.setattr(module, "choose_way", lambda *a: "cpu")


@pytest.mark.parametrize("learn", [(), ("threshold",), ("threshold", "tau")])
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("init", ["mp", 0.3, ss.LearnedInit((3, 5))])
def test_the_same_bits_as_the_operator(
    monkeypatch: pytest.MonkeyPatch,
    learn: tuple[str, ...],
    channels: int | None,
    dtype: torch.dtype,
    init: str | float | ss.LearnedInit,
) -> None:
    torch.manual_seed(0)
    first = ss.LIF(0.7, 1.7, learn=learn, channels=channels, init=init).to(dtype)
    with torch.no_grad():
        for p in first.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    x = torch.randn(4, 2, 3, 5, dtype=dtype)
    results = []
    for node in ("_FusedBackward", "steadyspike_lif_scan"):
        layer, leaf = copy.deepcopy(first), x.clone().requires_grad_()
        for _ in range(2):
            out = layer(leaf)
        assert node in out.grad_fn.name()
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
        results.append([out, leaf.grad, *layer.buffers(), *(p.grad for p in layer.parameters())])
        in_parts(monkeypatch)
    assert results[0][1].any() and (init != "mp" or layer.running_mean.all())
    for one, want in zip(*results, strict=True):
        assert torch.equal(one, want)


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
        actual = []
        for parts in (False, True):
            with monkeypatch.context() as patch:
                if parts:
                    in_parts(patch)
                layer = ss.LIF(channels=channels)
                with torch.no_grad():
                    getattr(layer, name)[-1] = raw
                actual.append([*gradients(layer, current()), layer.k.detach(), layer.w.detach()])
        for got, want in zip(*actual, strict=True):
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


def native(layer: ss.LIF) -> bool:
    return fused.native_start(layer, torch.float32) is not None


def test_a_subclass_of_an_initial_potential_is_called() -> None:
    """Which methods it has is looked at when it is defined; one without methods of its own starts in C++."""
    assert native(ss.LIF()) and native(ss.LIF(init=0.2)) and not native(ss.LIF(init=Shifted()))
    assert native(ss.LIF(init=type("Plain", (ss.MPInit,), {})()))
    still = ss.LIF(init=Still())
    assert not native(still) and runs_as_one(still)
    assert still.init.seen.shape == (2, 1) and not still.running_mean.any()
    shifted = ss.LIF(init=Shifted())
    assert torch.equal(shifted(current()), ss.LIF(init=0.25)(current()))


def test_an_init_that_is_any_module() -> None:
    class Own(torch.nn.Module):
        def potential(self, x: Tensor) -> Tensor:
            return torch.zeros(1)

        def update(self, active: Tensor) -> None:
            self.seen = active

    layer = ss.LIF()
    layer.init = Own()  # type: ignore[assignment]
    assert runs_as_one(layer) and layer.init.seen.shape == (2, 1)


@pytest.mark.parametrize(("training", "init_training"), [(True, False), (False, True), (False, False), (True, True)])
def test_modes_of_layer_and_init(monkeypatch: pytest.MonkeyPatch, training: bool, init_training: bool) -> None:
    actual = []
    for _ in range(2):
        layer = ss.LIF()
        layer(current())
        layer.train(training)
        layer.init.train(init_training)
        actual.append([layer(current()), layer.running_mean])
        in_parts(monkeypatch)
    assert all(torch.equal(got, want) for got, want in zip(*actual))


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
    assert out.grad_fn.name() == "_FusedBackward" and mean.item() != pytest.approx(0.4)
    assert not layer.running_mean.any()


def test_saved_tensors_that_get_hooks_later() -> None:
    """C++ reads V, 1/tau and their parameters as plain vectors, and hooks may return other strides."""
    layer, x = ss.LIF(channels=8), current().requires_grad_()
    want = gradients(copy.deepcopy(layer), x.detach())
    out = layer(x)
    for saved in out.grad_fn._raw_saved_tensors:
        saved.register_hooks(lambda t: t, lambda t: t.repeat_interleave(2, -1)[..., ::2])
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
    for got, expected in zip((x.grad, layer.k.grad, layer.w.grad), (want[1], *want[3:]), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("way", ["fused", "operator"])
def test_a_backward_without_any_gradient(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, out: Tensor) -> Tensor:
            return out * 2

        @staticmethod
        def backward(ctx: object, g: Tensor) -> None:
            return None

    if way == "operator":
        in_parts(monkeypatch)
    layer, x = ss.LIF(), current().requires_grad_()
    Nothing.apply(layer(x)).sum().backward()
    assert x.grad is None and (layer.k.grad is None or not layer.k.grad.any())


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


@pytest.mark.parametrize("membrane", [False, True])
@pytest.mark.parametrize("potential", [False, True])
def test_taps_are_served_by_the_node(membrane: bool, potential: bool) -> None:
    """The same outputs and statistics as without a tap, and U[0], U[T] and M as the reference has them."""
    layer, plain, reference = ss.LIF(init=ss.MPInit(0.5)), ss.LIF(init=ss.MPInit(0.5)), ss.LIF(backend="reference")
    seen = []
    tap = Tap(lambda layer, x, u0, result: seen.append((u0.clone(), result)), membrane, False, potential)
    for _ in range(2):
        reference.running_mean.copy_(layer.running_mean)
        layer.taps["test"] = tap
        assert runs_as_one(layer)
        plain(current())
        u0, result = seen[-1]
        want = reference.run(current(), reference.running_mean.clone(), membrane)
        assert torch.equal(layer.running_mean, plain.running_mean) and torch.equal(u0, reference.running_mean)
        torch.testing.assert_close(result.out, want.out)
        torch.testing.assert_close(result.active, want.active)
        if potential or membrane:
            torch.testing.assert_close(result.u, want.u)
        if membrane:
            torch.testing.assert_close(result.m, want.m)


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


def test_bad_arguments_are_refused() -> None:
    """By C++ itself, should Python ever pass them."""
    x, v = current(4, 2, 3), torch.ones(1)
    start = neuron_calls.Start(None, 0.3)
    job = fused_job.fused_job(x, v, v, start, ss.LIF().spec, (SOFTPLUS, SIGMOID))
    assert job is not None
    plan, memory = job.plan, job.memory
    constants = v, v / 2, v, v
    assert neuron_calls.neuron_forward(plan, x, constants, start, memory) is not None
    wrong = plan._replace(fixed=plan.fixed[:56] + (9).to_bytes(8, "little") + plan.fixed[64:])  # a dtype that is none
    with pytest.raises(RuntimeError, match="out of range"):
        neuron_calls.neuron_forward(wrong, x, constants, start, memory)
    wrong = plan._replace(fixed=(9).to_bytes(8, "little") + plan.fixed[8:])  # a link that is none
    with pytest.raises(RuntimeError, match="out of range"):
        neuron_calls.neuron_backward(wrong, x, constants, memory, OutputGradients(x), (False, True, True))


@pytest.mark.parametrize("init", ["zero", 0.3, "mp"])
def test_a_layer_without_memory_runs_where_the_device_is_set_for_all(init: str | float) -> None:
    """As the check of a recipe does, which builds a network of full size; a start is rounded by a tensor of its own."""
    with torch.device("meta"):
        assert ss.LIF(init=init)(torch.empty(2, 3, 4)).shape == (2, 3, 4)


def test_limits_of_a_subclass_are_kept() -> None:
    class Narrow(ss.LIF):
        def limit_constants(self) -> None:
            with torch.no_grad():
                self.k.clamp_(-0.1, 0.1)

    layer = Narrow(2.0)
    layer(torch.randn(4, 2, 3, 50))
    assert layer.k.abs().max() <= 0.1


@pytest.mark.parametrize("case", ["a formula that C++ has not", "a parameter of another dtype", "a cast current"])
def test_a_parameter_out_of_its_range_is_set_back_where_the_node_takes_values(case: str) -> None:
    layer: Neuron = ss.LTMD() if case == "a formula that C++ has not" else ss.LIF()
    x = current()
    if case == "a parameter of another dtype":
        layer.to(torch.bfloat16)
    else:
        x = x.double()
    layer.threshold.sum().backward()
    (raw,) = (p for p in layer.parameters() if p.grad is not None)
    link = SOFTPLUS if isinstance(layer, ss.LIF) else TANH
    with torch.no_grad():
        raw.fill_(-100.0)
    layer.eval()(x.requires_grad_())
    assert raw.item() == -100.0
    assert layer.train()(x).requires_grad and raw.item() == pytest.approx(link.low, rel=1e-2)


def test_a_subclass_with_constants_of_its_own_is_asked_for_them() -> None:
    class Loud(ss.LIF):
        @property
        def threshold(self) -> torch.Tensor:
            return super().threshold * 100

    assert not Loud()(torch.ones(4, 2, 3)).any() and ss.LIF()(torch.full((4, 2, 3), 3.0)).any()


def test_a_tensor_that_has_left_a_transform() -> None:
    escaped: list[torch.Tensor] = []
    x = torch.full((4, 2, 8), 3.0)
    torch.func.grad(lambda t: (escaped.append(t), t.sum())[1])(x)
    layer = ss.LIF().eval()
    assert torch.equal(layer(escaped[0]), layer(x)) and layer(x).any()


def test_threads_share_a_layer() -> None:
    layer = ss.LIF().eval()
    inputs = [torch.randn(4, 2, 8, 8) * scale for scale in (1, 2, 3, 4)]
    want = [layer(x) for x in inputs]
    wrong: list[int] = []

    def many(number: int) -> None:
        for _ in range(50):
            if not torch.equal(layer(inputs[number]), want[number]):
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_worked_out_once_follows_the_layer() -> None:
    """Another shape, memory order, dtype, option or constant than in the call before."""
    torch.manual_seed(0)
    layer, reference = (ss.LIF(0.7, backend=name, init="zero") for name in ("auto", "reference"))

    def check(x: torch.Tensor) -> None:
        grads = []
        for one in (layer, reference):
            leaf = x.clone().requires_grad_()
            one.zero_grad()
            one(leaf).square().sum().backward()
            grads.append([leaf.grad, *(p.grad for p in one.parameters())])
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)

    x = torch.randn(4, 2, 3, 4, 4)
    check(x)
    check(x.movedim(2, -1).contiguous().movedim(-1, 2))
    check(x[:1].expand_as(x))
    check(x[..., ::2])
    for one in (layer, reference):
        one.spec = dataclasses.replace(one.spec, reset=ss.Reset("hard"))
    check(x)
    for one in (layer, reference):
        one.set_constant("threshold", [0.3])
        one.set_learned("leak", False)
    check(x)
    for one in (layer, reference):
        one.double()
    check(x.double())


class _Started:
    def potential(self, x: Tensor) -> Tensor:
        return torch.full((1,), 5.0)


class _Counted:
    updates = 0

    def update(self, active: Tensor) -> None:
        self.updates += 1


def test_a_mixin_of_the_initial_potential_is_called() -> None:
    """A mixin is not a subclass of `InitialPotential`, so only the class that inherits from both can find it."""

    class Started(_Started, ss.MPInit):
        pass

    class Counted(_Counted, ss.MPInit):
        pass

    class Below(Counted):
        pass

    x = current()
    assert torch.equal(ss.LIF(init=Started())(x), ss.LIF(init=5.0)(x))
    for cls in (Counted, Below):
        layer = ss.LIF(init=cls())
        layer(x)
        assert layer.init.updates == 1 and not layer.running_mean.any()

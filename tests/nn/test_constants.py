"""Neuron constants: fixed ones are exact, learned ones stay in range and find their way back."""

from __future__ import annotations

import copy
import io
import math
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

import steadyspike as ss
from steadyspike.nn.factory import Site
from steadyspike.nn.groups import no_decay_names
from steadyspike.nn.neurons import neuron_factory
from steadyspike.nn.parametrization import AT_MOST_ONE, SIGMOID, SOFTPLUS, TANH
from steadyspike.paper.statistics.overhead import stored


def literal(x: Tensor, retention: float, threshold: float) -> Tensor:
    """The loop of the official code, as it stands there."""
    mem = torch.zeros_like(x[0])
    spikes = []
    for x_t in x:
        mem = mem * retention + x_t
        spike = (mem > threshold).to(x.dtype)
        mem = (1 - spike) * mem
        spikes.append(spike)
    return torch.stack(spikes)


def ties(threshold: float, retention: float) -> Tensor:
    """Currents on a grid on which the potential lands exactly on the threshold again and again, [6, 2, 4, 64, 1]."""
    g = torch.Generator().manual_seed(0)
    steps = torch.randint(-4, 9, (6, 2, 4, 64, 1), generator=g).float() / 8 * threshold
    steps[0, :, :, ::4], steps[1, :, :, ::4] = threshold, threshold * (1 - retention)
    return steps


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize(
    ("name", "retention", "threshold"),
    [
        ("lif-tebn", 0.25, 1.0),
        ("lif-tdbn", 0.25, 0.5),
        ("lif-tdbn", 0.25, 0.2),
        ("lif-tet", 0.5, 1.0),
        ("lif-tab", 0.9, 1.0),
    ],
)
def test_exact_ties_fire_as_in_the_official_code(name: str, retention: float, threshold: float, backend: str) -> None:
    layer = ss.neuron(name, threshold=threshold, backend=backend)
    x = ties(threshold, retention)
    assert torch.equal(layer(x), literal(x, retention, threshold))
    mem, hits = torch.zeros_like(x[0]), 0
    for x_t in x:
        mem = mem * retention + x_t
        hits += int((mem == torch.tensor(threshold)).sum())
        mem = mem * (mem <= threshold)
    assert hits > 50, "the currents make ties"


def test_exact_ties_of_mpbn() -> None:
    layer = ss.neuron("mpbn", features=4).eval()
    layer.norm.eps = 0.0  # mean 0, variance 1, weight 1, bias 0: the norm changes nothing
    x = ties(0.5, 0.25)
    assert torch.equal(layer(x), literal(x, 0.25, 0.5))
    assert torch.equal(layer.fold()(x), literal(x, 0.25, 0.5))


@pytest.mark.parametrize("threshold", [0.2, 0.3, 1.0, 1e-3, 7.7])
@pytest.mark.parametrize("tau", [4 / 3, 2.0, 10.0, 1.1, 250.0])
def test_fixed_constants_are_the_numbers_that_were_asked_for(threshold: float, tau: float) -> None:
    lif = ss.LIF(threshold, tau, learn=())
    assert lif.threshold.item() == torch.tensor(threshold).item()
    assert lif.leak.item() == torch.tensor(1 / tau).item()
    assert lif.double().threshold.item() == threshold and lif.leak.item() == 1 / tau


@pytest.mark.parametrize("threshold", [0.2, 0.3, 1.0, 1e-3, 7.7, 1e-8])
@pytest.mark.parametrize("tau", [4 / 3, 2.0, 10.0, 1.1, 250.0])
def test_learned_constants_start_as_near_as_the_parameter_can(threshold: float, tau: float) -> None:
    lif = ss.LIF(threshold, tau)
    k, w = lif.k.detach(), lif.w.detach()
    for raw, value, expected in ((k, SOFTPLUS.value, threshold), (w, SIGMOID.value, 1 / tau)):
        error = abs(value(raw).item() - expected)
        for end in (-torch.inf, torch.inf):
            assert error <= abs(value(torch.nextafter(raw, torch.full_like(raw, end))).item() - expected)
    assert lif.threshold.item() == pytest.approx(threshold, rel=2e-7)


def test_state_casts_copies_and_pickles_keep_fixed_constants() -> None:
    lif = ss.LIF([0.2, 0.3], 1.7, learn=(), channels=2)
    state = lif.state_dict()
    assert {"fixed_threshold", "fixed_leak"} <= set(state)
    other = ss.LIF(5.0, 9.0, learn=(), channels=2)
    other.load_state_dict(state)
    buffer = io.BytesIO()
    torch.save(lif.state_dict(), buffer)
    buffer.seek(0)
    again = ss.LIF(4.0, 3.0, learn=(), channels=2)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for twin in (other, again, copy.deepcopy(lif), pickle.loads(pickle.dumps(lif)), copy.deepcopy(lif).half().float()):
        assert torch.equal(twin.threshold, lif.threshold) and torch.equal(twin.leak, lif.leak)
    half = copy.deepcopy(lif).to(torch.bfloat16)
    assert half.threshold.dtype == torch.float32 and torch.equal(half.threshold, lif.threshold)
    assert other.double().threshold.tolist() == lif.threshold.double().tolist(), "5.0 was asked for, 0.2 was loaded"


def test_a_state_loads_by_its_values_into_learned_and_fixed_layers() -> None:
    learned, fixed = ss.LIF(0.7, 3.0), ss.LIF(0.2, 1.5, learn=())
    source = ss.LIF(1.3, 5.0, learn=("threshold",))
    for layer in (learned, fixed):
        layer.load_state_dict(source.state_dict())
        assert layer.threshold.item() == pytest.approx(1.3, rel=2e-7)
        assert layer.leak.item() == pytest.approx(0.2, rel=2e-7)
    assert learned.learned == ("threshold", "tau") and fixed.learned == ()
    network = nn.Sequential(nn.Linear(3, 3), ss.LIF(learn=()))
    network.load_state_dict(nn.Sequential(nn.Linear(3, 3), ss.LIF(2.0)).state_dict())
    assert network[1].threshold.item() == pytest.approx(2.0)
    with pytest.raises(RuntimeError, match="Missing key"):
        ss.LIF().load_state_dict({})


def test_freezing_and_learning_later() -> None:
    lif = ss.LIF(0.2, 4 / 3, learn=())
    before = lif.threshold
    lif.set_learned("threshold")
    assert lif.learned == ("threshold",) and isinstance(lif.k, nn.Parameter)
    assert lif.threshold.item() == pytest.approx(before.item(), rel=2e-7)
    lif(torch.rand(4, 2, 3)).sum().backward()
    assert lif.k.grad is not None
    lif.k.requires_grad_(False)
    assert lif.learned == ()
    lif.set_learned("threshold")
    assert lif.learned == ("threshold",)
    lif.set_learned("threshold")
    lif.set_learned("threshold", False)
    assert lif.k is None and not list(lif.parameters()) and "fixed_threshold" in lif.state_dict()
    with pytest.raises(ValueError, match="IF cannot learn its leak"):
        ss.IF().set_learned("leak")


LAYERS = [ss.LIF, ss.IF, ss.PLIF, ss.LTMD, ss.DIET, ss.MPS, partial(ss.MPBN, 3), ss.Readout]


@pytest.mark.parametrize("make", LAYERS)
def test_learn_means_the_same_everywhere(make) -> None:
    everything = make(learn=True)
    names = everything.learned
    assert names and names == everything.LEARNABLE
    for nothing in ((), False, None):
        layer = make(learn=nothing)
        assert layer.learned == ()
        assert not [n for n, p in layer.named_parameters() if p.requires_grad and not n.startswith("norm")]
    assert make(learn=names[0]).learned == names[:1] == make(learn=[names[0]]).learned
    with pytest.raises(ValueError, match="cannot learn 'colour'; known: "):
        make(learn="colour")


@pytest.mark.parametrize("link", [SOFTPLUS, SIGMOID])
@pytest.mark.parametrize("steps", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_learning_rate_drives_a_constant_out_of_its_range_for_good(link, steps: int) -> None:
    """``steps`` steps outwards, then back at the same rate: finite and positive throughout, and it comes back."""
    rates = torch.tensor([0.1, 1.0, 10.0, 1e4, 1e6, 1e8]).repeat(2)
    direction = torch.tensor([1.0, -1.0]).repeat_interleave(6)
    raw = nn.Parameter(torch.zeros(12))
    start = link.value(raw).detach()
    least, most, slope = start.clone(), start.clone(), torch.full_like(start, math.inf)
    back = torch.zeros(12, dtype=torch.bool)
    for step in range(3 * steps):
        outwards = step < steps
        value = link.value(raw)
        (grad,) = torch.autograd.grad(value, raw, direction if outwards else -direction)
        with torch.no_grad():
            # Kept, and checked once at the end, which halves the time; a NaN stays in them.
            torch.minimum(least, value, out=least), torch.maximum(most, value, out=most)
            torch.minimum(slope, grad.abs(), out=slope)
            if not outwards:
                back |= (value - start) * direction >= 0
            raw -= rates * grad
        link.limit(raw)
    assert (least > 0).all() and most.isfinite().all() and (slope > 0).all()
    assert link is SOFTPLUS or (1 / most > 1).all()
    assert back.all(), f"no way back at the learning rates {rates[~back].tolist()}"


@pytest.mark.parametrize("link", [SOFTPLUS, SIGMOID, TANH, AT_MOST_ONE])
def test_torch_func_finds_the_way_back_too(link) -> None:
    """Values and slopes of autograd, inside of the range, at its ends and outside."""
    low, high = (value if math.isfinite(value) else -3.0 for value in (link.low, link.high))
    raw = torch.tensor([low - 1, low, -0.5, 0.5, high, high + 1], dtype=torch.float64, requires_grad=True)
    value = link.value(raw)
    (slope,) = torch.autograd.grad(value.sum(), raw)
    assert (slope > 0).all()
    raw = raw.detach()
    torch.testing.assert_close(torch.func.grad(lambda raw: link.value(raw).sum())(raw), slope)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(link.value))(raw), slope)
    torch.testing.assert_close(torch.func.jvp(link.value, (raw,), (torch.ones_like(raw),)), (value.detach(), slope))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("lr", [1.0, 1e8])
def test_a_layer_survives_any_learning_rate_and_learns_again(optimizer, lr: float) -> None:
    torch.manual_seed(0)
    lif = ss.LIF(backend="reference")
    x = torch.rand(2, 4, 3)
    hostile = optimizer(lif.parameters(), lr=lr)
    for step in range(200):
        hostile.zero_grad()
        (lif(x).sum() * (-1) ** (step // 20) + lif.threshold.sum() + lif.leak.sum() * (-1) ** (step // 7)).backward()
        hostile.step()
        assert 0 < lif.threshold.item() < math.inf and 1 < lif.tau.item() < math.inf
    gentle = torch.optim.Adam(lif.parameters(), lr=0.3)
    for _ in range(600):
        gentle.zero_grad()
        lif(x)  # the training forward brings parameters back to the end of their range
        ((lif.threshold - 1).square() + (lif.leak - 0.5).square()).sum().backward()
        gentle.step()
    assert lif.tau.item() == pytest.approx(2.0, rel=0.2)
    assert lif.threshold.item() == pytest.approx(1.0, rel=0.2) or lr == 1e8  # 1e9 is far for steps of 0.3
    with pytest.raises(ValueError, match="learned threshold has a smaller range"):
        ss.LIF(1e-20)


def test_the_gradient_is_exact_where_networks_live() -> None:
    k = torch.tensor([-6.0, -2.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([-6.9, -1.0, 0.0, 2.0, 6.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(SOFTPLUS.value, k) and torch.autograd.gradcheck(SIGMOID.value, w)


def test_repr_says_what_the_layer_is() -> None:
    text = repr(ss.LIF(0.5, 4.0, learn=("tau",), reset="hard"))
    for part in ("V=0.5", "tau=4", "learn=('tau',)", "reset='hard'", "init", "MPInit"):
        assert part in text
    assert "V=0.5..2" in repr(ss.LIF([0.5, 1.0, 2.0], channels=3))
    assert "tau=inf" in repr(ss.IF()) and "V=" not in repr(ss.Readout())


def test_a_name_gives_a_layer_in_one_call() -> None:
    layer = ss.neuron("plif", tau=4.0)
    assert isinstance(layer, ss.PLIF) and layer(torch.rand(4, 2, 3)).shape == (4, 2, 3)
    assert isinstance(ss.neuron("mpbn", features=3), ss.MPBN)
    assert ss.neuron("imp", init=ss.LearnedInit((3,))).init.value.shape == (1, 3)
    for name, option in (("mpbn", "features"), ("imp", "init")):
        with pytest.raises(TypeError, match=f"give {option}"):
            ss.neuron(name)
    assert neuron_factory("plif").at(Site(3)).learned == ("tau",)


class AtMost(nn.Module):
    """A parametrization with an inverse."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(max=0.3)

    def right_inverse(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("raw", ["k", "w"])
def test_a_constant_may_be_parametrized(channels: int | None, raw: str) -> None:
    layer, plain = ss.LIF(2.0, 1.2, channels=channels), ss.LIF(2.0, 1.2, channels=channels)
    register_parametrization(layer, raw, AtMost())
    with torch.no_grad():
        getattr(plain, raw).clamp_(max=0.3)
    x = torch.randn(4, 2, 3, 5, generator=torch.Generator().manual_seed(0)).mul_(3)
    other = {"k": "w", "w": "k"}[raw]
    for _ in range(2):
        outs = [one(x) for one in (layer, plain)]
        assert torch.equal(*outs) and outs[0].any()
        for out in outs:
            out.sum().backward()
    assert torch.equal(getattr(layer, other).grad, getattr(plain, other).grad)
    original = layer.parametrizations[raw].original
    assert original.grad is not None and not original.grad.any()  # the clamp's gradient
    assert set(no_decay_names(layer)) == {other, f"parametrizations.{raw}.original"} and len(layer.learned) == 2
    copy.deepcopy(layer)(x)
    layer.load_state_dict(layer.state_dict())
    name, value = {"k": ("threshold", 0.5), "w": ("leak", 0.4)}[raw]
    layer.set_constant(name, [value])
    torch.testing.assert_close(layer.constant(name), torch.full((channels or 1,), value))
    with pytest.raises(ValueError, match="remove_parametrizations"):
        layer.set_learned(name, False)


class Scaled(nn.Module):
    """A parametrization that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / self.factor


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("name", ["threshold", "leak"])
def test_a_fixed_constant_may_be_parametrized(channels: int | None, name: str) -> None:
    key = f"fixed_{name}"
    x = torch.randn(4, 2, 3, 5, generator=torch.Generator().manual_seed(0)).mul_(3)
    layers = [ss.LIF(learn=(), channels=channels, backend=backend) for backend in ("auto", "reference")]
    plain = copy.deepcopy(layers[0])
    for layer in layers:
        register_parametrization(layer, key, Scaled())
        with torch.no_grad():
            layer.parametrizations[key][0].factor.mul_(0.5)
        out, half = layer(x), copy.deepcopy(plain)
        half.set_constant(name, plain.constant(name) / 2)
        assert torch.equal(out, half(x)) and out.any()
        out.square().sum().backward()
    slopes = [layer.parametrizations[key][0].factor.grad for layer in layers]
    assert slopes[0].abs() > 0
    torch.testing.assert_close(*slopes)
    layer, trained = layers[0], {"threshold": "threshold", "leak": "tau"}[name]
    assert layer.learned == (trained,) and no_decay_names(layer) == {f"parametrizations.{key}.0.factor"}
    assert stored(layer).statistics == stored(plain).statistics
    copy.deepcopy(layer).double()(x.double())
    layer.load_state_dict(layer.state_dict())
    layer.set_constant(name, [0.3])
    torch.testing.assert_close(layer.constant(name), torch.full((channels or 1,), 0.3))
    assert copy.deepcopy(layer).bfloat16().constant(name).dtype == torch.float32
    with pytest.raises(ValueError, match=f"remove_parametrizations.*{key}"):
        layer.set_learned(name)
    remove_parametrizations(layer, key)
    layer.set_learned(name)
    torch.testing.assert_close(layer.constant(name), torch.full((channels or 1,), 0.3))

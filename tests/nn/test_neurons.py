"""Every named neuron against its published equations, written out here with no line of code in common."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import reset, spike
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import ArcTan, DSpike, Rect, Sigmoid, Surrogate, Triangle
from steadyspike.nn.factory import Site, neuron_for
from steadyspike.nn.groups import no_decay_names
from steadyspike.nn.initial_potential import LearnedInit, MPInit
from steadyspike.nn.neurons import (
    DIET,
    IF,
    LIF,
    LTMD,
    MPBN,
    MPS,
    NEURONS,
    PLIF,
    RateLIF,
    Readout,
    neuron,
    neuron_factory,
    percentile_threshold,
)
from steadyspike.nn.neurons.rate import local_derivatives
from steadyspike.nn.norm import TDBN

T, B, C = 5, 4, 3
SITE = Site(channels=C, size=(4, 2), timesteps=T)
SPIKING = [name for name in NEURONS if name not in ("readout", "relu")]


def current(seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 1.3 * torch.randn(T, B, C, 4, 2, generator=g, dtype=torch.float64) + 0.4


def step(x: Tensor, fires: Tensor, surrogate: Surrogate) -> Tensor:
    """Hard step in the forward, derivative of the smooth primitive in the backward."""
    soft = surrogate.primitive(x)
    return fires.to(x.dtype) + (soft - soft.detach())


def plif(layer: PLIF, x: Tensor) -> Tensor:
    v, out = torch.zeros_like(x[0]), []
    for x_t in x:
        v = v + (x_t - v) * torch.sigmoid(layer.w)
        s = step(v - 1.0, v >= 1.0, ArcTan(2.0))
        v = v * (1 - s.detach())
        out.append(s)
    return torch.stack(out)


def integrate(layer: IF, x: Tensor) -> Tensor:
    k = torch.log1p(torch.exp(layer.k))
    u, out = torch.zeros_like(x[0]), []
    for x_t in x:
        m = u + x_t
        s = step(m / k - 1, m >= k, Rect(1.0))
        u = m - k * s
        out.append(k * s)
    return torch.stack(out)


def ltmd(layer: LTMD, x: Tensor) -> Tensor:
    u, s, out = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
    for x_t in x:
        v = torch.tanh(layer.w)
        u = 0.25 * u * (1 - s) + x_t
        s = step(u - v, u > v, Rect(1.0))
        out.append(s)
    return torch.stack(out)


def diet(layer: DIET, x: Tensor) -> Tensor:
    mem, out = torch.zeros_like(x[0]), []
    for x_t in x:
        mem = layer.lam * mem + x_t
        scaled = mem / layer.v - 1.0
        out.append(step(scaled, scaled > 0, Triangle(1.0, scale=0.3)))
        mem = mem - layer.v * (scaled > 0).to(mem.dtype)
    return torch.stack(out)


def imp(layer: IF, x: Tensor) -> Tensor:
    u, out = layer.init.value, []
    for x_t in x:
        m = u + x_t
        s = step(m - 1.0, m >= 1.0, ArcTan(2.0))
        u = m * (1 - s)
        out.append(s)
    return torch.stack(out)


def mps(layer: MPS, x: Tensor) -> Tensor:
    alpha = torch.sigmoid(layer.theta)
    u = smoothed = torch.zeros_like(x[0])
    out = []
    for x_t in x:
        smoothed = alpha * smoothed + (1 - alpha) * u
        m = 0.5 * smoothed + x_t
        s = step(m - 1.0, m >= 1.0, Rect(1.0))
        u = m - s
        out.append(s)
    return torch.stack(out)


def mpbn(layer: MPBN, x: Tensor) -> Tensor:
    """The authors' form: z/V_th with V_th = 1, level 1/2, Dspike on clamp(z, 0, 1)."""
    u, out, b = torch.zeros_like(x[0]), [], 3.0
    for x_t in x:
        u = 0.25 * u + x_t
        mean, var = u.mean((0, 2, 3), keepdim=True), u.var((0, 2, 3), correction=0, keepdim=True)
        weight, bias = (p.view(1, -1, 1, 1) for p in (layer.norm.weight, layer.norm.bias))
        z = (u - mean) / (var + 1e-5).sqrt() * weight + bias
        soft = (torch.tanh(b * (z.clamp(0, 1) - 0.5)) + math.tanh(b / 2)) / (2 * math.tanh(b / 2))
        s = (z > 0.5).to(z.dtype) + (soft - soft.detach())
        u = u * (1 - s)
        out.append(s)
    return torch.stack(out)


def ilif(layer: LIF, x: Tensor) -> Tensor:
    u, out = torch.zeros_like(x[0]), []
    for x_t in x:
        m = 0.25 * u + x_t
        clipped = m.clamp(0, 4)
        count = clipped + (clipped.round() - clipped).detach()
        u = m - count
        out.append(count)
    return torch.stack(out)


def mpd(layer: LIF, x: Tensor) -> Tensor:
    """The authors' form, with the spread of the current instead of mean(gamma) V of their norm."""
    mem, out, spread = torch.zeros_like(x[0]), [], float(x.detach().std(correction=0))
    for t, x_t in enumerate(x):
        mem = 0.2 * mem + x_t
        width = 2 * spread * (1.0 if t == 0 else math.sqrt(1 + 0.2**2))
        s = step(mem - 0.5, mem > 0.5, Rect(width))
        mem = mem * (1 - s)
        out.append(s)
    return torch.stack(out)


def readout(layer: Readout, x: Tensor) -> Tensor:
    m, out = torch.zeros_like(x[0]), []
    for x_t in x:
        m = m + (x_t - m) / 2.0
        out.append(m)
    return torch.stack(out)


def baseline(
    retention: float, v: float, surrogate: Surrogate, detach: bool = False, equal: bool = False
) -> Callable[[LIF, Tensor], Tensor]:
    def run(layer: LIF, x: Tensor) -> Tensor:
        mem, s, out = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
        for x_t in x:
            mem = retention * mem * (1 - (s.detach() if detach else s)) + x_t
            s = step(mem - v, mem >= v if equal else mem > v, surrogate)
            out.append(s)
        return torch.stack(out)

    return run


def bntt(layer: LIF, x: Tensor) -> Tensor:
    mem, out = torch.zeros_like(x[0]), []
    for x_t in x:
        mem = 0.95 * mem + x_t
        out.append(step(mem - 1, mem > 1, Triangle(1.0, scale=0.3)))
        mem = mem - (mem > 1).to(mem.dtype)
    return torch.stack(out)


BY_HAND: dict[str, Callable[..., Tensor]] = {
    "plif": plif,
    "if": integrate,
    "ltmd": ltmd,
    "diet": diet,
    "imp": imp,
    "mps": mps,
    "mpbn": mpbn,
    "ilif": ilif,
    "mpd": mpd,
    "readout": readout,
    "relu": lambda layer, x: x.clamp_min(0),
    "lif-tdbn": baseline(0.25, 0.5, Rect(1.0)),
    "lif-tet": baseline(0.5, 1.0, Triangle(1.0)),
    "lif-tebn": baseline(0.25, 1.0, Triangle(1.0)),
    "lif-tab": baseline(0.9, 1.0, Triangle(1.0)),
    "lif-ms": baseline(0.25, 0.5, Rect(1.0), detach=True),
    "if-sew": baseline(1.0, 1.0, ArcTan(2.0), detach=True, equal=True),
    "lif-bntt": bntt,
}


def test_every_named_neuron_has_its_equations_here() -> None:
    # "lif" has the whole of tests/nn/test_lif.py, "rate" the test below.
    assert set(BY_HAND) | {"lif", "rate"} == set(NEURONS)


@pytest.mark.parametrize("name", BY_HAND)
def test_output_and_every_gradient_follow_the_published_equations(name: str) -> None:
    options = {"init": "zero"} if name == "if" else {}
    layer = neuron_factory(name, **options).at(SITE).double()
    if name == "diet":
        with torch.no_grad():
            layer.lam.fill_(0.8)
            layer.v.fill_(0.9)
    weights = torch.randn(current().shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    results = []
    for run in (layer, lambda x: BY_HAND[name](layer, x)):
        x = current().requires_grad_()
        layer.zero_grad()
        out = run(x)
        (out * weights).sum().backward()
        trained = [p.grad.clone() for p in layer.parameters() if p.requires_grad]
        results.append([out.detach(), x.grad, *trained])
    assert name in ("readout", "ilif", "relu") or 0.05 < float(results[0][0].mean()) < 0.95
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)  # constants such as tau are stored in float32


@pytest.mark.parametrize(
    ("reset", "factor"),
    [
        (Reset("soft", True), lambda lam, m, s, sg: lam),
        (Reset("soft"), lambda lam, m, s, sg: lam * (1 - sg)),
        (Reset("hard"), lambda lam, m, s, sg: lam * (1 - s) - lam * m * sg),
    ],
    ids=["soft-detached", "soft", "hard"],
)
def test_rate_based_backpropagation_follows_its_recursion(reset: Reset, factor: Callable[..., Tensor]) -> None:
    layer = RateLIF(reset=reset).double()
    x = current().requires_grad_()
    rate = layer(x).mean(0)
    weights = torch.randn(rate.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (rate * weights).sum().backward()

    lam, u, e, eps, spikes = 1 - layer.leak, 0.0, 0.0, 1.0, []
    for t, x_t in enumerate(current()):
        m = lam * u + x_t
        s = (m >= 1.0).double()
        sig = torch.sigmoid(4 * (m - 1))
        sg = 4 * sig * (1 - sig)
        e = (t * e + eps * sg) / (t + 1)
        eps = 1 + eps * factor(lam, m, s, sg)
        u = m - s if reset.kind == "soft" else m * (1 - s)
        spikes.append(s)
    torch.testing.assert_close(rate.detach(), torch.stack(spikes).mean(0))
    mean_input = current().mean(0).requires_grad_()
    (mean_input * e * weights).sum().backward()
    torch.testing.assert_close(x.grad.sum(0), mean_input.grad)


@pytest.mark.parametrize("family", ["as", "rs", "trsg"])
@pytest.mark.parametrize("detach", ["none", "spike", "product"])
@pytest.mark.parametrize("kind", ["soft", "hard", "none"])
def test_rate_neuron_differentiates_one_step_as_autograd_does(family: str, detach: str, kind: str) -> None:
    spec = ScanSpec(family, Triangle(1.5), Reset(kind, detach))
    m, v = current()[0].requires_grad_(), torch.tensor([0.7], dtype=torch.float64)
    s = spike(m, v, spec)
    u = reset(m, s, v, spec)
    expected = [torch.autograd.grad(y.sum(), m, retain_graph=True)[0] for y in (s, u)]
    for got, want in zip(local_derivatives(m.detach(), s.detach(), v, spec), expected):
        torch.testing.assert_close(got, want)


def test_rate_neuron_keeps_nothing_of_size_t_for_the_backward() -> None:
    saved: list[int] = []
    x = current().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        RateLIF().double()(x)
    assert max(saved) <= x[0].numel()


def test_rate_neuron_gives_the_same_spikes_with_and_without_gradient() -> None:
    layer, x = RateLIF(gradient="trsg", init=0.3).double(), current()
    with torch.no_grad():
        plain = layer(x)
    assert torch.equal(plain, layer(x.requires_grad_()).detach())


@pytest.mark.parametrize("name", NEURONS)
def test_a_stream_of_single_steps_equals_one_window(name: str) -> None:
    layer = neuron_factory(name).at(SITE).double().eval()
    x = current().requires_grad_()
    whole = layer(x)
    whole.square().sum().backward()
    y = current().requires_grad_()
    state, steps = None, []
    for t in range(T):
        out, state = layer.scan(y[t : t + 1], state)
        steps.append(out)
    streamed = torch.cat(steps)
    assert torch.equal(streamed, whole)
    if name not in ("rate", "mpd"):  # their gradient is defined for a window, not for a step
        streamed.square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


def test_mps_state_forks_detaches_and_refuses_another_kind() -> None:
    layer, x = MPS().double(), current()
    _, state = layer.scan(x[:2])
    twin = state.fork()
    first, _ = layer.scan(x[2:], state)
    second, _ = layer.scan(x[2:], twin)
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match="used already"):
        layer.scan(x[2:], twin)
    _, state = layer.scan(x[:2].requires_grad_())
    assert state.smoothed.requires_grad
    assert not state.detach().smoothed.requires_grad
    _, foreign = LIF(init="zero").double().scan(x)
    with pytest.raises(TypeError, match="MPSState"):
        layer.scan(x, foreign)


@pytest.mark.parametrize("name", NEURONS)
def test_state_round_trip_and_copy(name: str) -> None:
    layer = neuron_factory(name).at(SITE)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.1)
    layer(current().float())
    other = neuron_factory(name).at(SITE)
    other.load_state_dict(layer.state_dict())
    x = current(1).float()
    layer.eval(), other.eval()
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert {n for n, p in layer.named_parameters() if p.ndim == 1 and not n.startswith("norm")} <= no_decay_names(layer)


@pytest.mark.parametrize("name", SPIKING)
def test_channelwise_builds_one_set_of_constants_per_channel(name: str) -> None:
    layer = neuron_factory(name, channelwise=True).at(SITE)
    assert layer.channels == C
    layer(current().float())
    for p in ("k", "w", "v", "lam"):
        assert getattr(layer, p, None) is None or getattr(layer, p).shape == (C,)
    assert layer.threshold.shape == layer.leak.shape == (C,) or name in ("if", "if-sew", "imp", "rate", "ltmd")


@pytest.mark.parametrize("name", [n for n in SPIKING if n != "imp"])
def test_mp_init_joins_every_spiking_neuron(name: str) -> None:
    layer = neuron_factory(name, init="mp").at(SITE)
    layer(current().float())
    assert isinstance(layer.init, MPInit)
    assert float(layer.running_mean) != 0.0


@pytest.mark.parametrize("name", [n for n in NEURONS if n not in ("rate", "relu")])
def test_imp_joins_every_neuron_that_can_train_it(name: str) -> None:
    layer = neuron_factory(name, init="imp").at(SITE)
    assert isinstance(layer.init, LearnedInit)
    layer(current().float()).square().sum().backward()
    assert float(layer.init.value.grad.abs().sum()) > 0


def test_imp_scopes_follow_the_site() -> None:
    for scope, shape in {"neuron": (1, 3, 4, 2), "channel": (1, 3, 1, 1), "space": (1, 1, 4, 2)}.items():
        assert neuron_factory("imp", imp_scope=scope).at(SITE).init.value.shape == shape
    value = neuron_factory("imp", imp_range=(-0.2, 0.2)).at(SITE).init.value
    assert float(value.detach().abs().max()) <= 0.2
    leaky = neuron_factory("imp", tau=4.0).at(SITE)
    assert isinstance(leaky, LIF) and isinstance(leaky.init, LearnedInit)
    assert leaky.learned == () and float(leaky.tau) == 4.0


def test_what_makes_no_sense_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="one initial potential"):
        neuron_factory("imp", init="mp")
    for init in (MPInit(0.5), MPInit, "zero", 0.3):
        with pytest.raises(ValueError, match="one initial potential"):
            neuron_factory("imp", init=init)
    with pytest.raises(TypeError, match="imp_scope only work with init='imp'"):
        neuron_factory("lif", imp_scope="channel")
    for name in ("rate", "ltmd"):
        with pytest.raises(ValueError, match="retention below 1"):
            neuron_factory(name, retention=1.0, decay_input=True)
        with pytest.raises(ValueError, match=r"in \(0, 1\]; got 0"):
            neuron_factory(name, retention=0.0)
    with pytest.raises(ValueError, match="gradient to U"):
        neuron_factory("rate", init="imp")
    with pytest.raises(ValueError, match="may cross 0"):
        neuron_factory("ltmd", gradient="trsg")
    with pytest.raises(ValueError, match="never fires"):
        neuron_factory("readout", init="mp")
    with pytest.raises(ValueError, match="input by 0"):
        IF(decay_input=True)
    with pytest.raises(ValueError, match="start retention below 1"):
        DIET(decay_input=True)
    for name, option in (("lif", "tau"), ("plif", "learn"), ("mpbn", "reset"), ("imp", "tau"), ("diet", "retention")):
        with pytest.raises(TypeError, match=f"neuron '{name}' has no option 'foo'; known: .*{option}.*imp_scope"):
            neuron_factory(name, foo=1)
    with pytest.raises(ValueError, match="unknown neuron 'xyz'; known: lif, if"):
        neuron_factory("xyz")
    with pytest.raises(TypeError, match="'colour'"):
        neuron_factory("plif", colour=1)
    with pytest.raises(ValueError, match="spatial size"):
        neuron_factory("imp").at(Site(3))
    with pytest.raises(TypeError, match="no spikes"):
        Readout().spikes(torch.zeros(1))


def test_conventions_are_options() -> None:
    x = current()
    at_threshold = torch.ones(1, 1, 1, dtype=torch.float64)
    assert not DIET().double()(at_threshold).any()
    assert DIET(strict=False).double()(at_threshold).all()
    scaled, plain = (DIET(retention=0.75, decay_input=d).double() for d in (True, False))
    assert torch.equal(scaled(4 * x), plain(x))
    no_leak = Readout(tau=None).double()
    torch.testing.assert_close(no_leak(x), x.cumsum(0))


def test_diet_clamps_the_parameter_as_its_authors_do() -> None:
    """Their loop: step, then ``lam.clamp_(max=1)``; the parameter itself comes back with the first step down."""
    layer, lam = DIET().double(), torch.ones(1, dtype=torch.float64)
    optimizer = torch.optim.SGD([layer.lam], lr=0.1)
    g = torch.Generator().manual_seed(0)
    for push in [-1.0] * 5 + [1.0] * 3 + torch.randn(50, generator=g).tolist():
        layer(current())  # the training forward clamps
        torch.testing.assert_close(layer.lam.detach(), lam, rtol=1e-12, atol=0)
        layer.lam.grad = torch.full((1,), push, dtype=torch.float64)
        optimizer.step()
        lam = (lam - 0.1 * push).clamp(max=1.0)
    with torch.no_grad():
        layer.lam.fill_(1.2)
    assert float(layer.leak.detach()) == 0.0  # evaluation sees the clamped value too


def test_percentile_threshold_is_a_percentile() -> None:
    values = torch.arange(1000, dtype=torch.float32)[torch.randperm(1000)].view(10, 100)
    assert percentile_threshold(values, 99.7, 1.0) == 996.0
    assert percentile_threshold(values, 50.0, 0.5) == 0.5 * 499.0


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("gradient", ["rs", "trsg"])
def test_mpbn_folds_into_levels_with_any_sign_of_gamma(gradient: str, reset: str, strict: bool) -> None:
    layer = MPBN(C, gradient=gradient, reset=reset, strict=strict, init=0.2).double()
    layer(current(1))
    with torch.no_grad():
        layer.norm.weight.copy_(torch.tensor([0.8, -1.1, 0.0]))
        layer.norm.bias.copy_(torch.tensor([0.3, 0.6, float(layer.threshold)], dtype=torch.float64))
    layer.eval()
    x = current()
    folded = layer.fold()
    assert torch.equal(folded(x), layer(x))
    # beta = V exactly: gamma = 0 fires always with >= and never with >.
    assert float((folded(x)[:, :, 2] > 0).double().mean()) == (0.0 if strict else 1.0)
    assert 0.0 < float((folded(x)[:, :, :2] > 0).double().mean()) < 1.0
    assert not list(folded.parameters())
    assert not folded.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mpbn_trains_in_half_precision(dtype: torch.dtype) -> None:
    """Its norm gets M, which is float32, and has half parameters."""
    x = torch.randn(3, 4, 8, 5, 5).to(dtype)
    layer, exact = MPBN(8).to(dtype), MPBN(8)
    out = layer(x)
    out.float().sum().backward()
    assert out.dtype == dtype and layer.norm.weight.grad is not None
    assert ((out.float() > 0) == (exact(x.float()) > 0)).float().mean() > 0.98  # M is rounded near the threshold


def test_mpbn_running_statistics_move_once_per_step() -> None:
    layer = MPBN(C)
    layer(current().float())
    assert int(layer.norm.num_batches_tracked) == T


def test_a_network_asks_for_neurons_by_name_or_class() -> None:
    assert isinstance(neuron_for(neuron_factory("plif"), SITE), PLIF)
    assert isinstance(neuron_for(LIF, SITE), LIF)
    spec = neuron_factory("lif", tau=4.0, channelwise=True)
    assert repr(spec) == "neuron_factory('lif', tau=4.0, channelwise=True)"
    first, second = spec.at(SITE), spec.at(SITE)
    assert first is not second and first.k is not second.k


def test_published_settings_are_what_the_papers_say() -> None:
    """Family, surrogate, reset, detach, strict, decay_input: section 12.4 of the comparison, row by row."""
    rows = {
        "plif": ("as", ArcTan(2.0), "hard", "spike", False, True),
        "ltmd": ("as", Rect(1.0), "hard", "none", True, False),
        "diet": ("rs", Triangle(1.0, scale=0.3), "soft", "spike", True, False),
        "imp": ("as", ArcTan(2.0), "hard", "none", False, False),
        "mpbn": ("rs", DSpike(2.0, temperature=3.0), "hard", "none", True, False),
        "rate": ("as", Sigmoid(0.25), "soft", "spike", False, False),
        "lif": ("trsg", Rect(1.0), "soft", "none", False, True),
        "lif-bntt": ("rs", Triangle(1.0, scale=0.3), "soft", "product", True, False),
    }
    for name, row in rows.items():
        s = neuron_factory(name).at(SITE).spec
        assert (s.family, s.surrogate, s.reset.kind, s.reset.detach, s.strict, s.decay_input) == row, name


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("init", ["mp", "imp", 0.3])
def test_folded_mpbn_starts_where_the_neuron_does(init: str | float, channelwise: bool) -> None:
    layer = neuron_factory("mpbn", tau=4.0, init=init, reset="soft", channelwise=channelwise).at(SITE).double()
    for seed in range(10):
        layer(current(seed) - 0.5)
    layer.eval()
    folded, x = layer.fold(), current(99) - 0.5
    if init == "mp":
        assert layer.running_mean.all() and torch.equal(folded.running_mean, layer.running_mean)
        assert folded.running_mean.dtype == torch.float64 and folded.running_mean is not layer.running_mean
    assert torch.equal(folded(x), layer(x))


@pytest.mark.peer
@pytest.mark.parametrize("detach", [False, True])
def test_ilif_equals_spikingjellys(detach: bool) -> None:
    """Outputs and gradients of SpikingJelly's `ILIFNode`, also on ties: M / V = 0.5, 1.5, 0 and 4 exactly."""
    theirs = pytest.importorskip("spikingjelly.activation_based.neuron")
    node = theirs.ILIFNode(detach_reset=detach, step_mode="m")
    layer = neuron("ilif", reset=Reset("soft", detach=detach))
    x = torch.randn(T, B, C, 4, generator=torch.Generator().manual_seed(0)) * 2
    x[0, 0, 0] = torch.tensor([0.5, 1.5, 0.0, 4.0])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = layer(a), node(b)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert out.max() == 4 and out.min() == 0
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_ilif_in_torch_func() -> None:
    """The gradients of autograd, also at both ends of the clip."""
    layer, x = neuron("ilif", levels=2), current()
    x[0, 0, 0] = torch.tensor([0.0, 2.0])
    x.requires_grad_()
    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)

    def loss(x: Tensor) -> Tensor:
        return (layer(x) * weights).sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    x = x.detach()
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    value, slope = torch.func.jvp(loss, (x,), (weights,))
    torch.testing.assert_close((value, slope), (loss(x), (expected * weights).sum()))
    torch.testing.assert_close(torch.func.vmap(layer, 1, 1)(x[:, :, None]), layer(x)[:, :, None])


def test_ilif_counts_are_binary_steps_to_a_linear_layer() -> None:
    """W C equals the sum over levels of W S for the thermometer code S of C: spike-driven inference."""
    counts = neuron("ilif", levels=3)(current().float())
    weight = torch.randn(6, 2)
    unary = torch.stack([(counts > d).float() for d in range(3)])
    torch.testing.assert_close((unary @ weight.T).sum(0), counts @ weight.T)


def test_mpd_takes_the_authors_width_behind_their_norm() -> None:
    """Behind tdBN with the factor V and weights gamma, s is gamma V: the width of the authors' code."""
    norm = TDBN(C, scaling="factor", threshold=0.5).double()
    nn.init.constant_(norm.weight, 1.3)
    layer = neuron("mpd").double()
    first, later = layer._specs(norm(current()).detach(), layer.leak)
    torch.testing.assert_close(float(first.surrogate.width), 2 * 1.3 * 0.5, rtol=1e-4, atol=0)
    torch.testing.assert_close(float(later.surrogate.width), 2 * 1.3 * 0.5 * math.sqrt(1.04), rtol=1e-4, atol=0)


def test_mpd_gives_a_gradient_at_any_scale_of_the_current() -> None:
    """The share of neurons with a gradient stays when V and current grow a hundredfold; a fixed width loses it."""
    shares = {}
    for name in ("mpd", "lif-tdbn"):
        for scale in (1.0, 100.0):
            layer = neuron(name, threshold=0.5 * scale).double()
            x = (current() * scale).requires_grad_()
            layer(x).sum().backward()
            shares[name, scale] = float((x.grad != 0).double().mean())
    assert shares["mpd", 100.0] == pytest.approx(shares["mpd", 1.0], abs=0.02)
    assert shares["lif-tdbn", 100.0] < 0.1 * shares["lif-tdbn", 1.0]

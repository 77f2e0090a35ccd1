"""Norm and neuron by Triton operators, in Triton's interpreter, against the reference; started by test_triton_norm.py.

``TRITON_INTERPRET=1 python -m pytest tests/kernels/triton_norm_interpreted.py``, see triton_interpreted.py.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import SURROGATES
from steadyspike.nn.fused_norm import Normed, norm_neuron
from steadyspike.nn.initial_potential import LearnedInit
from steadyspike.nn.neuron import Tap
from steadyspike.nn.norm import BNTT, TAB, TEBN
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.operator_norm import takes_operator
from tests.kernels.scan_cases import RESETS, TUNED, arrange
from tests.kernels.triton_interpreted import _guarded_memory, _poisoned_memory  # noqa: F401  (used by every test)
from tests.models.members import TINY, clip, member

SHORTCUTS = ("none", "spikes", "norm")
# Potentials stay away from the jumps of spikes and surrogates by this much, so that rounding decides nothing.
MARGIN = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-4, torch.float16: 1e-4}
# (rtol, atol as a share of the largest value). Half precision: the gradient through the current is rounded once, and dy
# once more; parameters are float32.
ROUNDING = {torch.float64: (1e-9, 1e-10), torch.float32: (1e-4, 2e-5), torch.bfloat16: (1e-2, 1e-2)}
ROUNDING[torch.float16] = (2e-3, 2e-3)


@dataclass(frozen=True)
class Layer:
    """A norm and a neuron, and what they are given."""

    spec: ScanSpec = field(default_factory=ScanSpec)
    shape: tuple[int, ...] = (3, 2, 3, 4, 5)
    dtype: torch.dtype = torch.float64
    layout: str = "contiguous"
    shortcut: str = "none"
    training: bool = True
    channelwise: bool = False
    init: str = "mp"
    scaling: str = "none"
    bias: bool = True

    def __str__(self) -> str:
        s = self.spec
        parts = [s.family, s.surrogate.name, s.reset.kind, str(s.reset.detach), "x".join(map(str, self.shape))]
        parts += [str(self.dtype)[6:], self.layout, self.shortcut, self.init, "train" if self.training else "eval"]
        return "-".join(parts + ["channelwise"] * self.channelwise + [self.scaling] + ["nobias"] * (not self.bias))


def build(case: Layer) -> nn.ModuleDict:
    """The layers in the dtype of the arithmetic, with statistics and parameters away from where they start."""
    torch.manual_seed(0)
    s, channels = case.spec, case.shape[2]
    init: Any = LearnedInit(case.shape[2:]) if case.init == "learned" else case.init
    neuron = ss.LIF(
        *(0.7, 1.7, s.family, s.surrogate, s.reset, init),
        channels=channels if case.channelwise else None,
        strict=s.strict,
        decay_input=s.decay_input,
        backend="triton",
    )
    norms = [TDBN(channels, case.scaling, 0.8, 0.6, bias=case.bias) for _ in range(2)]
    model = nn.ModuleDict({"norm": norms[0], "other": norms[1], "neuron": neuron})
    with torch.no_grad():
        for norm in norms:
            norm.weight.uniform_(0.7, 1.4)
            norm.running_mean.uniform_(-0.3, 0.3)
            norm.running_var.uniform_(0.6, 1.6)
            if norm.bias is not None:
                norm.bias.uniform_(0.0, 0.6)
        if case.init == "mp":
            neuron.running_mean.uniform_(-0.1, 0.3)
    return model.to(torch.promote_types(case.dtype, torch.float32)).train(case.training)


@torch.no_grad()
def draw(case: Layer, model: nn.ModuleDict) -> tuple[Tensor, Tensor | None]:
    """y and extra for which no potential of the reference is near a jump: drawn whole until that is so."""
    for seed in range(300):
        g = torch.Generator().manual_seed(seed)
        y = torch.randn(case.shape, generator=g, dtype=torch.float64).mul(2).add(1.5).to(case.dtype)
        extra = torch.randn(case.shape, generator=g, dtype=torch.float64).to(case.dtype)
        extra = (extra > 0.7).to(case.dtype) if case.shortcut == "spikes" else extra
        y, extra = arrange(y, case.layout), arrange(extra, case.layout)
        truth = copy.deepcopy(model).double()
        seen: list[Tensor] = []
        truth["neuron"].taps["m"] = Tap(lambda *a, seen=seen: seen.append(a[3].m), membrane=True)
        reference(truth, y.double(), None if case.shortcut == "none" else extra.double(), case.shortcut)
        v, m = truth["neuron"].threshold.view(-1, *[1] * (y.ndim - 3)), seen[0]
        half = case.spec.surrogate.constants[0] / 2 if case.spec.surrogate.name in ("rect", "dspike") else 0.0
        x = m - v if case.spec.family == "as" else m / v - 1
        near = min(float((x.abs() - edge).abs().min()) for edge in (0.0, half))
        if near > MARGIN[case.dtype]:
            return y, None if case.shortcut == "none" else extra
    raise AssertionError(f"no inputs away from the jumps found for {case}")


def reference(model: nn.ModuleDict, y: Tensor, extra: Tensor | None, shortcut: str = "spikes") -> Tensor:
    """The layers one after the other, with the reference scan."""
    model["neuron"].backend = "reference"
    other = model["other"](extra) if shortcut == "norm" and extra is not None else extra
    x = model["norm"](y)
    return model["neuron"](x if other is None else x + other)


def by_operators(model: nn.ModuleDict, y: Tensor, extra: Tensor | None, shortcut: str) -> Tensor:
    other: Any = Normed(model["other"], extra) if shortcut == "norm" and extra is not None else extra
    assert takes_operator(model["norm"], model["neuron"], y, other)
    return norm_neuron(model["norm"], model["neuron"], y, other)


def results(out: Tensor, model: nn.ModuleDict, y: Tensor, extra: Tensor | None) -> dict[str, Tensor]:
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    out.backward(g.to(torch.bfloat16).to(out.dtype))  # values that every dtype has
    named = {"out": out.detach(), "dy": y.grad, "dextra": None if extra is None else extra.grad}
    named |= {f"d {name}": p.grad for name, p in model.named_parameters()} | dict(model.named_buffers())
    return {name: t.detach().double() for name, t in named.items() if t is not None}


def check(case: Layer) -> dict[str, Tensor]:
    model = build(case)
    y, extra = draw(case, model)
    truth = copy.deepcopy(model).double()

    def leaf(t: Tensor | None, double: bool) -> Tensor | None:
        return None if t is None else (t.double() if double else t).detach().requires_grad_()

    pair, exact = (leaf(y, False), leaf(extra, False)), (leaf(y, True), leaf(extra, True))
    got = results(by_operators(model, pair[0], pair[1], case.shortcut), model, *pair)  # type: ignore[arg-type]
    want = results(reference(truth, exact[0], exact[1], case.shortcut), truth, *exact)  # type: ignore[arg-type]
    assert got.keys() == want.keys() and (got["out"].any() or y.numel() < 8)
    for name, value in want.items():
        rtol, share = ROUNDING[
            case.dtype if name in ("out", "dy", "dextra") else torch.promote_types(case.dtype, torch.float32)
        ]
        # Sums of terms that cancel: one term's rounding times the root of their number.
        one_term = 1e-12 if case.dtype == torch.float64 else 2e-6
        atol = share * float(value.abs().max()) + one_term * y.numel() ** 0.5
        torch.testing.assert_close(got[name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n} of {case}: {m}")
    return got


def specs() -> list[ScanSpec]:
    """Every family with every reset; every surrogate; both firing rules and input scalings."""
    names = list(SURROGATES)
    pairs = list(product(("as", "rs", "trsg"), RESETS))
    return [
        ScanSpec(family, TUNED[names[i % 5]], reset, strict=i % 2 == 1, decay_input=i % 3 != 1)
        for i, (family, reset) in enumerate(pairs)
    ]


@pytest.mark.parametrize("i", range(21))
def test_specs(i: int) -> None:
    check(Layer(specs()[i], shortcut=SHORTCUTS[i % 3], channelwise=i % 2 == 0))


@pytest.mark.parametrize("timesteps", range(1, 10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_time_steps(timesteps: int, dtype: torch.dtype) -> None:
    spec = ScanSpec(surrogate="triangle", reset=Reset("hard" if timesteps % 2 else "soft"))
    check(Layer(spec, (timesteps, 2, 3, 5), dtype, shortcut=SHORTCUTS[timesteps % 3]))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted", "strided_time"])
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("training", [True, False])
def test_layouts(layout: str, shortcut: str, training: bool) -> None:
    check(Layer(layout=layout, shortcut=shortcut, training=training))


# One element per channel and step, primes, more channels than a program has, several tiles, no image axes.
SIZES = [
    (2, 1, 1),
    (1, 3, 5),
    (2, 2, 1, 3),
    (3, 5, 33),
    (2, 3, 2, 17, 19),
    (1, 13, 2, 1031),
    (2, 40, 37, 2),
    (4, 2, 3, 2, 2, 2),
]


@pytest.mark.parametrize("shape", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("channelwise", [False, True])
def test_sizes(shape: tuple[int, ...], channelwise: bool) -> None:
    check(Layer(shape=shape, channelwise=channelwise, shortcut="norm" if len(shape) > 3 else "none"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_half_precision(dtype: torch.dtype, layout: str, shortcut: str) -> None:
    check(Layer(ScanSpec(surrogate="arctan"), (4, 2, 3, 3, 3), dtype, layout, shortcut, channelwise=True))


@pytest.mark.parametrize("init", ["zero", "learned"])
@pytest.mark.parametrize("scaling", ["factor", "gamma"])
def test_starts_and_scalings(init: str, scaling: str) -> None:
    check(Layer(init=init, scaling=scaling, bias=init == "zero", shortcut="spikes"))


def test_many_blocks_of_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program of the moments reads several blocks, the last one fewer."""
    from steadyspike.kernels.scan.triton import norm_backend

    y = arrange(torch.randn(3, 7, 5, 41, 2, dtype=torch.float64) * 2 + 50, "contiguous")
    want = torch.var_mean(y, [0, 1, 3, 4], correction=0)
    for programs, block in ((1024, 256), (3, 256), (1, 512)):
        monkeypatch.setattr(norm_backend, "PROGRAMS", programs)
        monkeypatch.setattr(norm_backend, "BLOCK", (block, 4))
        mean, var = norm_backend.batch_moments(y)
        torch.testing.assert_close(mean, want[1], rtol=1e-12, atol=0)
        torch.testing.assert_close(var, want[0], rtol=1e-10, atol=0)


def test_the_variance_of_values_far_from_zero() -> None:
    from steadyspike.kernels.scan.triton.norm_backend import batch_moments

    y = torch.randn(4, 8, 3, 16, 16) * 0.01 + 100
    want = torch.var_mean(y.double(), [0, 1, 3, 4], correction=0)
    mean, var = batch_moments(y)
    torch.testing.assert_close(mean.double(), want[1], rtol=1e-7, atol=0)
    torch.testing.assert_close(var.double(), want[0], rtol=1e-4, atol=0)


@pytest.mark.parametrize("norm", [BNTT, TEBN, TAB])
def test_norms_with_a_scale_per_step_in_evaluation(norm: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer, neuron = norm(3, 4).double().eval(), ss.LIF(0.6, init=0.1, backend="triton").double().eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.uniform_(0.5, 1.5)
    y = torch.randn(4, 2, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        assert takes_operator(layer, neuron, y, None)  # type: ignore[arg-type]
        got = norm_neuron(layer, neuron, y)
        neuron.backend = "reference"
        torch.testing.assert_close(got, neuron(layer(y)))
    neuron.backend = "triton"
    assert not takes_operator(layer, neuron, y.requires_grad_(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [TDBN, TEBN])
def test_a_shortcut_with_a_scale_per_step_is_computed_before(first: Any) -> None:
    torch.manual_seed(0)
    norm = first(3).double() if first is TDBN else first(3, 4).double()
    other, neuron = TEBN(3, 4).double(), ss.LIF(0.6, init=0.1, backend="triton").double()
    with torch.no_grad():
        other.p.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))
        y, e = (torch.randn(4, 2, 3, 5, dtype=torch.float64) for _ in range(2))
        for layer in (norm, other, neuron):
            layer.eval()
        got = norm_neuron(norm, neuron, y, Normed(other, e))
        neuron.backend = "reference"
        torch.testing.assert_close(got, neuron(norm(y) + other(e)))


def test_only_what_is_wanted_gets_a_gradient() -> None:
    model = build(Layer(shortcut="spikes"))
    y, extra = torch.randn(3, 2, 3, 4, dtype=torch.float64), torch.rand(3, 2, 3, 4, dtype=torch.float64)
    for name, p in model.named_parameters():
        p.requires_grad_(name == "neuron.k")
    out = norm_neuron(model["norm"], model["neuron"], y, extra)
    truth = copy.deepcopy(model)
    truth.load_state_dict(build(Layer()).state_dict())
    (got,) = torch.autograd.grad(out.square().sum(), [model["neuron"].k])
    (want,) = torch.autograd.grad(reference(truth, y, extra).square().sum(), [truth["neuron"].k])
    torch.testing.assert_close(got, want)


class Traffic:
    """Bytes that kernels load and store, counted lane by lane from their own instructions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.runtime.interpreter import InterpreterBuilder

        self.loaded = self.stored = 0
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def moved(pointers: Any, mask: Any) -> int:
            lanes = int(np.broadcast_to(mask.data, pointers.data.shape).sum())
            return lanes * pointers.get_element_ty().primitive_bitwidth // 8

        def counted_load(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            self.loaded += moved(pointers, mask)
            return load(builder, pointers, mask, *rest)

        def counted_store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.stored += moved(pointers, mask)
            return store(builder, pointers, value, mask, *rest)

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counted_store)

    def taken(self) -> int:
        total, self.loaded, self.stored = self.loaded + self.stored, 0, 0
        return total


@pytest.mark.parametrize(
    ("shortcut", "training", "most"),
    [("none", True, 18.5), ("none", False, 4.5), ("spikes", True, 24.5), ("spikes", False, 6.5), ("norm", True, 32.5)],
)
def test_bytes_per_element_and_step(
    shortcut: str, training: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16, T = 4, forward and backward in training. The goal is at most 19 bytes for norm and neuron in training.

    None: moments 2; forward 2 + 2; backward 2 + 2 + 2; gradient of the norm 2 + 2 + 2. Partial sums and parameters are
    what is above the whole number. A shortcut adds 2 in the forward, 2 + 2 in the backward; its norm 2 and 6 more.
    """
    case = Layer(shape=(4, 8, 8, 16, 16), dtype=torch.bfloat16, shortcut=shortcut, training=training)
    model, traffic = build(case), Traffic(monkeypatch)
    y, extra = (torch.randn(case.shape).to(case.dtype).requires_grad_(training) for _ in range(2))
    with torch.set_grad_enabled(training):
        out = by_operators(model, y, None if shortcut == "none" else extra, shortcut)
    if training:
        out.backward(torch.randn(case.shape).to(case.dtype))
    per_element = traffic.taken() / y.numel()
    assert int(most) <= per_element <= most


class Block(nn.Module):
    """Two layers with a shortcut, as the registered networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(TDBN(3) for _ in range(3))
        self.neurons = nn.ModuleList(ss.LIF(0.6, backend="triton") for _ in range(2))

    def forward(self, y: Tensor) -> Tensor:
        s = norm_neuron(self.norms[0], self.neurons[0], y)
        return norm_neuron(self.norms[1], self.neurons[1], 0.7 * s + y, Normed(self.norms[2], y))  # type: ignore[arg-type]


def step(call: Any, model: nn.Module, y: Tensor) -> dict[str, Tensor]:
    y = y.detach().requires_grad_()
    model.zero_grad()
    out = call(y)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))
    named = {"out": out.detach(), "dy": y.grad} | {name: p.grad for name, p in model.named_parameters()}
    return {name: t.clone() for name, t in (named | dict(model.named_buffers())).items() if t is not None}


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_block_is_one_graph_with_the_operators(compiler: str) -> None:
    """Two steps, so that the running statistics of the first matter."""
    torch.manual_seed(0)
    y, plain = torch.randn(4, 2, 3, 5, dtype=torch.float64), Block().double()
    model = copy.deepcopy(plain)
    calls: list[str] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Any:
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend(compiler)(graph, example)

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same(step(compiled, model, y), step(plain, plain, y))
    assert sum("affine_scan" in name for name in calls) == 2 and sum("norm_moments" in name for name in calls) == 3


@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_activation_checkpoints(kind: str) -> None:
    from torch.utils.checkpoint import checkpoint as torchs

    from steadyspike.nn.checkpoint import checkpoint as ours

    torch.manual_seed(0)
    y, plain = torch.randn(4, 2, 3, 5, dtype=torch.float64), Block().double()
    model = copy.deepcopy(plain)

    def call(y: Tensor) -> Tensor:
        return ours(model, y) if kind == "ours" else torchs(model, y, use_reentrant=False)  # type: ignore[return-value]

    for _ in range(2):
        assert_same(step(call, model, y), step(plain, plain, y))


def test_autocast_computes_in_float32() -> None:
    torch.manual_seed(0)
    conv, norm, neuron = nn.Conv2d(3, 4, 3), TDBN(4), ss.LIF(0.5, backend="triton")
    x = torch.randn(6, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x).unflatten(0, (3, 2))
        assert y.dtype == torch.bfloat16 and takes_operator(norm, neuron, y, None)
        out = norm_neuron(norm, neuron, y)
        assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert conv.weight.grad is not None and norm.weight.grad is not None
    assert norm.weight.grad.dtype == norm.running_mean.dtype == torch.float32


class Own(nn.Module):
    """Norms and neurons that are called in a way of a user's own; ``calls`` are the operators expected in a forward."""

    def __init__(self, call: Any, shape: tuple[int, ...] = (3, 2, 3, 4), calls: int = 1, channels: int = 3) -> None:
        super().__init__()
        self.call, self.shape, self.expected = call, shape, calls
        self.norms = nn.ModuleList(TDBN(channels) for _ in range(2))
        self.neurons = nn.ModuleList(ss.LIF(0.6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out = self.call(x, *self.norms, *self.neurons)
        assert isinstance(out, Tensor)
        return out


def _frozen(x: Tensor, n: nn.Module, o: Any, f: nn.Module, g: nn.Module) -> Tensor:
    return norm_neuron(n.eval(), f, x)


def _frozen_beside(x: Tensor, n: nn.Module, o: Any, f: nn.Module, g: nn.Module) -> Tensor:
    return norm_neuron(n, f, x, Normed(o.eval(), 2 * x))


def _changed(x: Tensor, n: nn.Module, o: nn.Module, f: nn.Module, g: nn.Module) -> Tensor:
    return norm_neuron(n, f, x).mul_(2.0)


# Nothing in them is a convolution; a norm that is frozen next to one that trains is computed before the scan.
OWN = {
    "norm of the input": Own(lambda x, n, o, f, g: norm_neuron(n, f, x), (7, 2, 3)),
    "one image axis, T = 19": Own(lambda x, n, o, f, g: norm_neuron(n, f, x), (19, 2, 3, 2)),
    "a neuron called twice": Own(lambda x, n, o, f, g: norm_neuron(o, f, norm_neuron(n, f, x) + x), calls=2),
    "a norm called twice": Own(lambda x, n, o, f, g: norm_neuron(n, g, norm_neuron(n, f, x) + x), calls=2),
    "a norm as its own shortcut": Own(lambda x, n, o, f, g: norm_neuron(n, f, x, Normed(n, 2 * x))),
    "the input as shortcut": Own(lambda x, n, o, f, g: norm_neuron(n, f, x, x)),
    "two norms of the input": Own(lambda x, n, o, f, g: norm_neuron(n, f, x, Normed(o, x))),
    "concatenated": Own(lambda x, n, o, f, g: norm_neuron(n, f, torch.cat([x, x * x], 2)), channels=6),
    "a part of the channels": Own(lambda x, n, o, f, g: norm_neuron(n, f, x[:, :, 1:]), (3, 2, 4, 4)),
    "an image for all steps": Own(lambda x, n, o, f, g: norm_neuron(n, f, x.expand(4, -1, -1, -1)), (1, 2, 3, 4)),
    "a shortcut for all steps": Own(lambda x, n, o, f, g: norm_neuron(n, f, x, x[:1].expand(3, -1, -1, -1))),
    "batch first": Own(lambda x, n, o, f, g: norm_neuron(n, f, x.transpose(0, 1)), (2, 3, 3, 4)),
    "its input is read elsewhere": Own(lambda x, n, o, f, g: norm_neuron(n, f, x) * x + x.sin()),
    "a frozen norm": Own(_frozen),
    "a frozen norm beside one that trains": Own(_frozen_beside, calls=0),
    "a shortcut that is broadcast": Own(lambda x, n, o, f, g: norm_neuron(n, f, x, x[:1]), calls=0),
    "parts of a window": Own(lambda x, n, o, f, g: torch.cat([norm_neuron(n, f, c) for c in x.split(2)]), calls=2),
    "the output is changed in place": Own(_changed),
}


@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
@pytest.mark.parametrize("name", OWN)
def test_networks_unlike_ours(name: str, watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of networks that are put together in other ways than the registered ones, against the reference."""
    from steadyspike.nn import fused_norm

    torch.manual_seed(0)
    model = copy.deepcopy(OWN[name]).double()
    y = torch.randn(model.shape, dtype=torch.float64) * 1.5 + 0.5
    calls: list[int] = []
    original = fused_norm.operator_norm_neuron
    monkeypatch.setattr(fused_norm, "operator_norm_neuron", lambda *a: calls.append(1) or original(*a))
    by_backend = {}
    for backend in ("triton", "reference"):
        layers = copy.deepcopy(model)
        seen: list[Tensor] = []
        for neuron in layers.neurons:
            neuron.backend = backend  # type: ignore[assignment]
            if watched:
                neuron.taps["u"] = Tap(lambda *a, seen=seen: seen.append(a[3].u.detach()), current=False)  # type: ignore
        results = [step(layers, layers, y) for _ in range(2)][1]
        by_backend[backend] = results | {f"U {i}": u for i, u in enumerate(seen)}
    assert len(calls) == 2 * model.expected
    assert_same(by_backend["triton"], by_backend["reference"])


def test_second_derivatives_are_refused() -> None:
    model = build(Layer())
    y = torch.randn(3, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    (dy,) = torch.autograd.grad(norm_neuron(model["norm"], model["neuron"], y).sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        dy.sum().backward()


def test_taps_get_what_they_ask_for() -> None:
    model, truth = build(Layer()), build(Layer())
    y = torch.randn(3, 2, 3, 4, dtype=torch.float64)
    seen: list[Any] = []
    for layers in (model, truth):
        layers["neuron"].taps["m"] = Tap(lambda *a: seen.append(a[3]), membrane=True, current=False)
    norm_neuron(model["norm"], model["neuron"], y)
    reference(truth, y, None)
    got, want = seen
    for name in ("out", "u", "m", "active"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name))


@pytest.mark.parametrize("look", ["hook", "tap"])
def test_the_current_is_in_memory_if_something_looks_at_it(look: str) -> None:
    model = build(Layer())
    y = torch.randn(3, 2, 3, 4, dtype=torch.float64)
    seen: list[Tensor] = []
    if look == "tap":
        model["neuron"].taps["x"] = Tap(lambda *a: seen.append(a[1]))
    else:
        model["neuron"].register_forward_hook(lambda *a: seen.append(a[1][0]))
    norm_neuron(model["norm"], model["neuron"], y)
    torch.testing.assert_close(seen[0], build(Layer())["norm"](y))


@pytest.mark.parametrize("name", ["affine_scan", "norm_moments"])
def test_operators_follow_the_rules_of_torch(name: str) -> None:
    y = torch.randn(3, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    one, channels = torch.ones(1, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    spec = ScanSpec(surrogate="arctan")
    from steadyspike.kernels.scan.norm_operator import affine_scan_op, norm_moments_op

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    if name == "norm_moments":
        torch.library.opcheck(norm_moments_op, (y,), test_utils=tests)
    else:
        leaves = [t.clone().requires_grad_() for t in (0 * one, one, 0.5 * one, channels, channels)]
        call = (list(spec.codes), list(spec.constants), True, False, True)
        torch.library.opcheck(affine_scan_op, (y, *leaves, y.detach(), None, None, None, *call), test_utils=tests)


SHARES = [slice(0, 1), slice(1, 3)]  # unequal: the counts must be summed too


def _two_steps(share: slice) -> tuple[Block, dict[str, Tensor]]:
    torch.manual_seed(0)
    model, y = Block().double(), torch.randn(4, 3, 3, 5, dtype=torch.float64)
    step(model, model, y[:, share].contiguous())
    y = y[:, share].contiguous().requires_grad_()
    model.zero_grad()
    out = model(y)
    out.square().sum().backward()
    assert y.grad is not None
    return model, {"out": out.detach(), "dy": y.grad}


def _process(rank: int, folder: str) -> None:
    import torch.distributed as dist

    from steadyspike.train.state.processes import leave_group

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, actual = _two_steps(SHARES[rank])
    for name, p in model.named_parameters():
        assert p.grad is not None
        dist.all_reduce(p.grad)
        actual[name] = p.grad
    torch.save(actual | dict(model.named_buffers()), f"{folder}/{rank}.pt")
    leave_group()


def test_two_processes_equal_one(tmp_path: Any) -> None:
    """Statistics of norm and MP-Init are those of the whole batch, and so are all gradients."""
    torch.multiprocessing.spawn(_process, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    model, want = _two_steps(slice(None))
    want |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | dict(model.named_buffers())
    got = {name: torch.cat([t, second[name]], 1) if name in ("out", "dy") else t for name, t in first.items()}
    assert_same(got, want)


FEW = ("sew_resnet34_tiny",)


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in TINY])
def test_registered_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole network by the operators: every norm before a neuron, the same loss and gradients as the reference."""
    from steadyspike.nn import fused_norm

    torch.manual_seed(0)
    model = member(name, timesteps=2).double()
    truth = copy.deepcopy(model)
    calls: list[int] = []
    original = fused_norm.operator_norm_neuron
    monkeypatch.setattr(fused_norm, "operator_norm_neuron", lambda *a: calls.append(1) or original(*a))
    for layers, backend in ((model, "triton"), (truth, "reference")):
        for neuron in ss.nn.neuron.neurons(layers).values():
            neuron.backend = backend
    x = clip(name, 2, 2).double()
    for layers in (model, truth):
        layers(x).square().sum().backward()
    assert len(calls) >= (1 if name == "spikingresformer_tiny" else 2)
    for (key, p), q in zip(model.named_parameters(), truth.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-7, atol=1e-8, msg=lambda m, n=key: f"{n}: {m}")
    for (key, b), other in zip(model.named_buffers(), truth.buffers()):
        torch.testing.assert_close(b, other, rtol=1e-9, atol=1e-9, msg=lambda m, n=key: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_save_memory_keeps_the_spikes_of_a_convolution_as_bits(dtype: torch.dtype) -> None:
    """What autograd keeps after the forward: y of each norm, and the spikes between them as bits, 1/16 in 16 bits."""
    from steadyspike.nn.memory.pack import save_memory
    from steadyspike.nn.memory.track import MemoryTracker

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
            self.norms = nn.ModuleList(TDBN(16) for _ in range(2))
            self.neurons = nn.ModuleList(ss.LIF(0.6, backend="triton") for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for conv, norm, neuron in zip(self.convs, self.norms, self.neurons):
                y = conv(x.flatten(0, 1)).unflatten(0, x.shape[:2])
                x = norm_neuron(norm, neuron, y)  # type: ignore[arg-type]
            return x

    torch.manual_seed(0)
    x = torch.randn(4, 2, 16, 16, 16).to(dtype)
    plain = Two()
    plain.convs.to(dtype)
    lean = save_memory(copy.deepcopy(plain))
    live, gradients = {}, {}
    for name, model in (("plain", plain), ("lean", lean)):
        with MemoryTracker() as tracker:
            for t in (x, *model.parameters(), *model.buffers()):
                tracker.ignore(t)
            out = model(x)
            live[name] = tracker.live
        out.float().sum().backward()
        gradients[name] = [p.grad for p in model.parameters()]
    words = x.numel() // 8
    # The output is alive in both; what is left besides the spikes are sums and constants per channel.
    assert live["plain"] - live["lean"] == pytest.approx(x.nbytes - words, abs=2048)
    assert words == x.nbytes / (8 * dtype.itemsize)
    for got, want in zip(gradients["lean"], gradients["plain"]):
        assert torch.equal(got, want)  # type: ignore[arg-type]

"""A compiled kernel computes the library's own surrogates and no others: whatever else is asked for runs in Python."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import SURROGATES, Rect, Surrogate, Triangle, why_not_compiled
from steadyspike.kernels.scan import choose
from steadyspike.nn.neuron import Neuron
from tests.kernels.built import needs_kernel


class Narrow(Triangle):
    """Says that nothing gets a gradient."""

    def derivative(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class Gauss(Surrogate):
    """A surrogate that has no built-in relative."""

    name: ClassVar[str] = "gauss"
    width: float = 0.5

    def derivative(self, x: Tensor) -> Tensor:
        return torch.exp(-((x / self.width) ** 2))


@dataclass(frozen=True, eq=False)
class Annealed(Surrogate):
    """One whose width is a tensor that changes while the network trains."""

    name: ClassVar[str] = "annealed"
    width: Tensor

    def derivative(self, x: Tensor) -> Tensor:
        return (x.abs() < self.width / 2).to(x.dtype) / self.width


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    choose._say_once.cache_clear()


def gradient(surrogate: str | Surrogate, backend: str) -> Tensor:
    torch.manual_seed(0)
    layer = ss.LIF(surrogate=surrogate, init="zero", backend=backend)
    x = torch.randn(4, 2, 3, 8, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    return x.grad


@needs_kernel
@pytest.mark.parametrize("surrogate", [Narrow(), Gauss(), Annealed(torch.tensor(0.7))], ids=lambda s: type(s).__name__)
def test_auto_takes_the_reference_and_says_so_once(surrogate: Surrogate) -> None:
    with pytest.warns(UserWarning, match=f"surrogate {type(surrogate).__name__} is not one of"):
        got = gradient(surrogate, "auto")
    assert torch.equal(got, gradient(surrogate, "reference"))
    assert (got == 0).all() == isinstance(surrogate, Narrow)
    gradient(surrogate, "auto")  # a second warning would be an error


@needs_kernel
@pytest.mark.parametrize("surrogate", [Narrow(), Gauss()], ids=lambda s: type(s).__name__)
def test_an_explicit_kernel_refuses(surrogate: Surrogate) -> None:
    with pytest.raises(RuntimeError, match=f"'cpu' cannot run this layer: the surrogate {type(surrogate).__name__}"):
        gradient(surrogate, "cpu")


@needs_kernel
def test_a_replaced_method_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Rect()
    object.__setattr__(one, "derivative", torch.zeros_like)
    with pytest.raises(RuntimeError, match="a method of the surrogate Rect was replaced"):
        gradient(one, "cpu")
    monkeypatch.setattr(Triangle, "derivative", lambda self, x: torch.zeros_like(x))
    with pytest.warns(UserWarning, match="a method of the surrogate Triangle was replaced"):
        assert not gradient("triangle", "auto").any()


def test_the_width_may_change_while_a_network_trains() -> None:
    width = torch.tensor(0.5)
    surrogate = Annealed(width)
    before = gradient(surrogate, "reference")
    width.fill_(2.0)
    assert not torch.equal(gradient(surrogate, "reference"), before)
    assert torch.equal(gradient(surrogate, "reference"), gradient(Rect(2.0), "reference"))
    assert "a tensor as a constant" in str(why_not_compiled(Rect(width)))  # type: ignore[arg-type]


def test_every_built_in_surrogate_is_compiled() -> None:
    for cls in SURROGATES.values():
        assert why_not_compiled(cls()) is None
        assert why_not_compiled(copy.deepcopy(cls())) is None
    assert [ScanSpec(surrogate=cls()).codes[1] for cls in SURROGATES.values()] == list(range(len(SURROGATES)))
    assert ScanSpec(surrogate=Narrow()).codes[1] == -1


@needs_kernel
def test_a_compiled_model_takes_the_reference_too() -> None:
    layer, x = ss.LIF(surrogate=Narrow()), torch.randn(3, 2, 4)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    want = copy.deepcopy(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(x), want(x))


class Halves:
    """Dynamics of its own, as a mixin: every current counts half."""

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False):  # type: ignore[no-untyped-def]
        return super().run(x / 2, u0, membrane)  # type: ignore[misc]


class Halved(Halves, ss.LIF):
    pass


class Below(Halved):
    pass


class Says(Halves, ss.LIF):
    runs_kernel = True


def test_a_neuron_with_its_own_run_is_no_kernel() -> None:
    for cls in (Halved, Below):
        with pytest.raises(ValueError, match=rf"{cls.__name__}: .* own Python code \(it overrides run"):
            cls(backend="cpu")
        assert "its own Python code" in str(cls().why_no_kernel())
    with pytest.raises(ValueError, match="'cpu' cannot run MPBN"):  # which has a ``run`` itself
        ss.MPBN(3, backend="cpu")
    assert ss.LIF().why_no_kernel() is None and ss.Readout().why_no_kernel() is None
    assert Says(backend="cpu").why_no_kernel() is None and type("More", (Says,), {})(backend="cpu")


def test_check_model_names_layers_on_the_reference() -> None:
    net = nn.Sequential(nn.Linear(4, 8), ss.LIF(surrogate=Gauss()), nn.Linear(8, 4), ss.LIF())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = ss.check_model(net, torch.randn(4, 3, 4) * 3)
    (check,) = (c for c in report.checks if c.name == "kernel")
    assert check.ok and check.layer == "1" and "Gauss" in check.message
    assert "every neuron layer" in str(ss.check_model(nn.Sequential(nn.Linear(4, 8), ss.LIF()), torch.randn(4, 3, 4)))


def test_a_users_neuron_needs_no_attribute_for_its_parameters() -> None:
    class Own(Neuron):
        def __init__(self) -> None:
            super().__init__(ScanSpec(), "zero")
            self.level = nn.Parameter(torch.ones(1))
            self.mix = nn.Linear(3, 3)

    net = nn.Sequential(nn.Linear(2, 3), Own())
    decayed, free = ss.parameter_groups(net, 0.1)
    assert {id(p) for p in free["params"]} == {id(net[1].level)}
    assert len(decayed["params"]) == 4

"""A layer's scan as one autograd node, beside its constants and `lif_scan` one after the other."""

from __future__ import annotations

import copy

import pytest
import torch

import steadyspike as ss
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn import neuron as module

MISSING = CpuBackend().why_not(torch.empty(0))
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def nodes(out: torch.Tensor) -> set[str]:
    """The names of all nodes of the graph below ``out``."""
    found, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            found.add(node.name())
            todo.extend(above for above, _ in node.next_functions)
    return found


@pytest.mark.parametrize("learn", [(), ("threshold",), ("threshold", "tau")])
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bits_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, learn: tuple[str, ...], channels: int | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer = ss.LIF(0.7, 1.7, learn=learn, channels=channels).to(dtype)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    general = copy.deepcopy(layer)
    x = torch.randn(4, 2, 3, 5, dtype=dtype)
    results = []
    for one in (layer, general):
        leaf = x.clone().requires_grad_()
        for _ in range(2):
            out = one(leaf)
        assert ("_LayerScanBackward" in nodes(out)) == (one is layer)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
        results.append([out, leaf.grad, one.running_mean, *(p.grad for p in one.parameters())])
        monkeypatch.setattr(module, "layer_scan", lambda *a: None)
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


def test_a_subclass_with_constants_of_its_own_is_asked_for_them() -> None:
    class Loud(ss.LIF):
        @property
        def threshold(self) -> torch.Tensor:
            return super().threshold * 100

    assert not Loud()(torch.ones(4, 2, 3)).any() and ss.LIF()(torch.full((4, 2, 3), 3.0)).any()


def test_a_parameter_out_of_its_range_comes_back() -> None:
    layer = ss.LIF()
    with torch.no_grad():
        layer.k.fill_(-1e9)
    layer(torch.randn(4, 2, 3)).sum().backward()
    assert layer.k.item() > -100 and layer.k.grad is not None and torch.isfinite(layer.k.grad).all()


def test_refuses_second_derivatives() -> None:
    layer, x = ss.LIF(), torch.randn(4, 2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dx.sum().backward()

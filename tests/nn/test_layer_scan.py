"""A layer's scan as one autograd node, beside its constants and `lif_scan` one after the other."""

from __future__ import annotations

import copy
import dataclasses
import threading

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
@pytest.mark.parametrize("init", ["mp", 0.3])
def test_the_same_bits_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
    learn: tuple[str, ...],
    channels: int | None,
    dtype: torch.dtype,
    init: str | float,
) -> None:
    """The whole forward as one, the scan as one, and all parts one after the other."""
    torch.manual_seed(0)
    first = ss.LIF(0.7, 1.7, learn=learn, channels=channels, init=init).to(dtype)
    with torch.no_grad():
        for p in first.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    x = torch.randn(4, 2, 3, 5, dtype=dtype)
    results = []
    for way in ("_LayerForwardBackward", "_LayerScanBackward", "DirectScanBackward"):
        layer, leaf = copy.deepcopy(first), x.clone().requires_grad_()
        for _ in range(2):
            out = layer(leaf)
        assert way in nodes(out)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
        results.append([out, leaf.grad, *layer.buffers(), *(p.grad for p in layer.parameters())])
        monkeypatch.setattr(module, "layer_forward" if "Forward" in way else "layer_scan", lambda *a, **k: None)
    assert results[0][1].any() and (init != "mp" or layer.running_mean.all())
    for got in results[:2]:
        for one, want in zip(got, results[2], strict=True):
            assert torch.equal(one, want)


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


def test_saved_tensors_that_come_back_with_other_strides() -> None:
    """The C++ scan multiplies by the slopes of V and a in their memory, which has to be that of a plain vector."""
    found = []
    for unpack in (lambda t: t, lambda t: t.repeat_interleave(2, -1)[..., ::2]):
        torch.manual_seed(0)
        layer, x = ss.LIF(channels=4), torch.randn(3, 2, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            out = layer(x)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        found.append([x.grad, layer.k.grad, layer.w.grad])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_refuses_second_derivatives() -> None:
    layer, x = ss.LIF(), torch.randn(4, 2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dx.sum().backward()


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


@pytest.mark.parametrize("learn", [True, False])
def test_saved_tensors_may_come_back_in_another_way(learn: bool) -> None:
    x = torch.randn(4, 2, 3, 8, generator=torch.Generator().manual_seed(0)).mul_(2)
    grads = []
    for change in (lambda t: t, lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)):
        layer, leaf = ss.LIF(learn=learn, channels=3), x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, change):
            layer(leaf).square().sum().backward()
        grads.append([leaf.grad, *(p.grad for p in layer.parameters())])
    for got, want in zip(*grads, strict=True):
        assert want is not None and torch.allclose(got, want, atol=1e-6)
    assert grads[0][0].any()

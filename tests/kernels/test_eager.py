"""An ordinary call skips the operator's dispatch and must not differ from it in anything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import steadyspike as ss
from steadyspike.kernels.eager import is_ordinary
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.cpu import neuron_calls
from steadyspike.nn.snapshot import snapshot
from tests.kernels.built import needs_kernel


class Seen(TorchDispatchMode):
    """Names of all operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def step(layer: ss.LIF, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x)
    out.backward(g)
    grads = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **grads, "mean": layer.running_mean.clone()}  # type: ignore[dict-item]


@needs_kernel
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_same_bits_with_and_without_the_operator(channels: int | None, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(4, 2, 3, 5, 5).contiguous(memory_format=layout), torch.randn(4, 2, 3, 5, 5)
    direct, operator = ss.LIF(channels=channels), ss.LIF(channels=channels)
    for _ in range(3):
        want = step(direct, x, g)
        with Seen() as seen:
            got = step(operator, x, g)
        assert {"steadyspike.lif_scan.default", "steadyspike.snapshot.default"} <= set(seen.names)
        assert got.keys() == want.keys() and len(got) == 5
        for name in want:
            assert torch.equal(got[name], want[name]), name


def test_what_is_ordinary() -> None:
    x = torch.zeros(2)
    assert is_ordinary(x, torch.nn.Parameter(x))
    with Seen():
        assert not is_ordinary(x)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    assert not is_ordinary(fake)
    inside: list[bool] = []
    torch.func.vmap(lambda t: (inside.append(is_ordinary(x)), t)[1])(x)
    assert inside == [False]


@needs_kernel
def test_a_second_derivative_of_a_copied_input_is_refused() -> None:
    x = torch.randn(4, 2, 6, requires_grad=True)
    layer = ss.LIF(surrogate="sigmoid", learn=(), init="zero", backend="cpu")
    (g,) = torch.autograd.grad(layer(x.transpose(1, 2)[:, ::2]).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(g.square().sum() + x.square().sum(), x)


@needs_kernel
@pytest.mark.parametrize("how", ["expanded", "strided", "permuted"])
def test_saved_tensors_that_come_back_in_another_layout(how: str) -> None:
    """Saved-tensor hooks may return equal values in any layout; the kernel reads by address."""
    torch.manual_seed(0)
    start = torch.randn(4, 1, 8).expand(4, 50, 8).contiguous()

    def unpack(t: Tensor) -> Tensor:
        if t.ndim != 3:
            return t
        if how == "expanded":
            return t[:, :1].clone().expand(t.shape)
        return torch.stack([t, t], -1)[..., 0] if how == "strided" else t.mT.contiguous().mT

    grads = []
    for backend in ("reference", "cpu"):
        x = start.clone().requires_grad_()
        layer = ss.LIF(surrogate="sigmoid", init="zero", backend=backend)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), unpack):
            out = layer(x)
        out.sum().backward()
        grads.append([x.grad, layer.k.grad, layer.w.grad])
    torch.testing.assert_close(grads[0], grads[1])


@needs_kernel
def test_a_sign_that_is_not_in_memory() -> None:
    v = torch.complex(torch.zeros(1), -torch.ones(1)).conj().imag
    assert v.is_neg()
    layer, x = ss.LIF(), torch.randn(4, 3, 8)
    want = lif_scan(x, torch.zeros(1), torch.ones(1), torch.full((1,), 0.5), layer.spec, backend="cpu").out
    assert torch.equal(lif_scan(x, torch.zeros(1), v, torch.full((1,), 0.5), layer.spec, backend="cpu").out, want)


class TestTransforms:
    """torch.func and forward mode: right through the reference, refused by an explicit kernel, never zeros."""

    def setup_method(self) -> None:
        torch.manual_seed(0)
        self.layer = ss.LIF(init="zero").eval()
        self.x, self.g = torch.randn(3, 2, 4) + 0.5, torch.randn(3, 2, 4)
        leaf = self.x.clone().requires_grad_()
        (self.grad,) = torch.autograd.grad(self.layer(leaf), leaf, self.g)
        assert self.grad.any()

    def test_reverse(self) -> None:
        torch.testing.assert_close(torch.func.grad(lambda x: (self.layer(x) * self.g).sum())(self.x), self.grad)
        (grad,) = torch.func.vjp(self.layer, self.x)[1](self.g)
        torch.testing.assert_close(grad, self.grad)

    def test_forward_mode_agrees_with_reverse(self) -> None:
        tangent = torch.randn_like(self.x)
        want = (self.grad * tangent).sum()
        _, out = torch.func.jvp(self.layer, (self.x,), (tangent,))
        torch.testing.assert_close((out * self.g).sum(), want)
        with torch.autograd.forward_ad.dual_level():
            dual = self.layer(torch.autograd.forward_ad.make_dual(self.x, tangent))
            out = torch.autograd.forward_ad.unpack_dual(dual).tangent
        torch.testing.assert_close((out * self.g).sum(), want)

    def test_per_sample_gradients(self) -> None:
        def loss(x: Tensor, g: Tensor) -> Tensor:
            return (self.layer(x[:, None]) * g[:, None]).sum()

        got = torch.func.vmap(torch.func.grad(loss), in_dims=(1, 1), out_dims=1)(self.x, self.g)
        torch.testing.assert_close(got, self.grad)

    def test_an_explicit_kernel_refuses(self) -> None:
        layer = ss.LIF(backend="cpu")
        with pytest.raises(RuntimeError, match="use backend='auto' or 'reference'"):
            torch.func.jvp(layer, (self.x,), (self.x,))


def test_a_snapshot_is_a_copy_without_a_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    copied = snapshot(x)
    assert not copied.requires_grad and copied.data_ptr() != x.data_ptr()


@needs_kernel
def test_a_layer_is_few_frames_away_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from `LIF.forward` to the function that calls C: of a whole forward, and of a scan alone."""
    frames: list[str] = []

    def watched(function: Callable[..., int]) -> Callable[..., int]:
        def call(*args: bytes) -> int:
            frames.extend(f.function for f in inspect.stack()[1:])
            return function(*args)

        return call

    build = neuron_calls._BEST
    monkeypatch.setattr(build, "functions", [watched(function) for function in build.functions])
    for init, most in (("mp", 4), (ss.LearnedInit((4,)), 6)):
        frames.clear()
        ss.LIF(init=init)(torch.randn(2, 3, 4))
        path = frames[: frames.index("_call_impl")]
        assert path[-1] == "forward" and len(path) <= most, path

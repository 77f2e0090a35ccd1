"""First derivatives only: a second one raises an error, never None, for every tensor that the first depends on."""

import itertools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import steadyspike as ss
from steadyspike.kernels.conv.function import spike_conv2d, spike_linear
from steadyspike.kernels.once import trace_of
from steadyspike.nn import TDBN
from steadyspike.nn.fused_norm import norm_neuron
from tests.kernels.built import ALWAYS, needs_kernel
from tests.kernels.test_eager import Seen

pytestmark = needs_kernel


def fixed(backend: str = "cpu") -> ss.LIF:
    return ss.LIF(learn=(), init="zero", backend=backend, surrogate="sigmoid")


def second(loss: Tensor, by: Tensor, then: Tensor) -> Tensor | None:
    """d/d then of the sum of the gradient by ``by``."""
    (first,) = torch.autograd.grad(loss, by, create_graph=True)
    return torch.autograd.grad(first.sum(), then, allow_unused=True)[0]


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("under", [nullcontext, Seen])
@pytest.mark.parametrize("loss", [Tensor.sum, lambda out: out.square().sum()], ids=["constant", "square"])
def test_the_scan_names_the_way_out(
    loss: Callable[[Tensor], Tensor], under: type[AbstractContextManager[object]]
) -> None:
    """Also if the first derivative came from a constant gradient."""
    layer, x = ss.LIF(channels=4), leaf(3, 2, 4)
    for by, then in itertools.product((x, layer.k, layer.w), repeat=2):
        with under(), pytest.raises(RuntimeError, match=r"first derivatives only .* backend='reference'"):
            second(loss(layer(x)), by, then)


def conv(x: Tensor, weight: Tensor) -> Tensor | None:
    return spike_conv2d(x.flatten(0, 1), weight[:, :, None, None], costs=ALWAYS)


def linear(x: Tensor, weight: Tensor) -> Tensor | None:
    return spike_linear(x.movedim(2, -1).contiguous(), weight, costs=ALWAYS)


@pytest.mark.parametrize("layer", [conv, linear])
def test_a_weight_s_gradient_depends_on_spikes_of_which_only_bits_are_kept(
    layer: Callable[[Tensor, Tensor], Tensor | None],
) -> None:
    x, weight = leaf(2, 2, 16, 8, 8), leaf(8, 16)
    for neuron, (by, then) in itertools.product((fixed(), fixed("reference")), ((weight, x), (x, weight))):
        out = layer(neuron(x), weight)
        assert out is not None
        with pytest.raises(RuntimeError, match="differentiated twice"):
            second(out.sum(), by, then)


def test_what_depends_on_nothing_that_is_missing_is_computed() -> None:
    """The input's gradient does not depend on the spikes: with a neuron of the reference it is complete."""
    x, weight = leaf(2, 2, 16, 8, 8), leaf(8, 16)
    actual = []
    for frozen in (weight, weight.detach()):
        out = conv(fixed("reference")(x), frozen)
        assert out is not None
        actual.append(second(out.sum(), x, x))
    want = second(torch.conv2d(fixed("reference")(x).flatten(0, 1), weight[:, :, None, None]).sum(), x, x)
    assert want is not None and want.any()
    for got in actual:
        torch.testing.assert_close(got, want)


def test_a_neuron_that_keeps_the_bits_of_what_is_added() -> None:
    x, y, norm, neuron = leaf(2, 2, 16, 8, 8), leaf(2, 2, 16, 8, 8), TDBN(16), ss.LIF()
    for by in (y, norm.weight, norm.bias, neuron.k):
        with pytest.raises(RuntimeError, match="differentiated twice"):
            second(norm_neuron(norm, neuron, y, fixed()(x)).sum(), by, x)


@pytest.mark.parametrize("fused", [False, True])
def test_batches_of_gradients_refuse_too(fused: bool) -> None:
    y, norm, neuron = leaf(2, 2, 16, 8, 8), TDBN(16), fixed()
    out = norm_neuron(norm, neuron, y) if fused else neuron(y)
    (many,) = torch.autograd.grad(out, y, torch.randn(3, *out.shape), is_grads_batched=True, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(many.sum(), y, allow_unused=True)


def test_the_trace_of_an_input_keeps_none_of_its_memory() -> None:
    kept = []
    x, weight = leaf(2, 2, 16, 8, 8), leaf(8, 16)
    spikes = fixed()(x)
    kept.append(weakref.ref(spikes.untyped_storage()))
    out = conv(spikes, weight)
    assert out is not None
    y, norm, neuron = leaf(2, 2, 16, 8, 8), TDBN(16), ss.LIF()
    spikes = fixed()(x)
    kept.append(weakref.ref(spikes.untyped_storage()))
    other = norm_neuron(norm, neuron, y, spikes)
    del spikes
    assert [ref() for ref in kept] == [None, None]
    (out.sum() + other.sum()).backward()
    assert x.grad is not None


def test_the_trace_of_an_input_copies_nothing() -> None:
    x = torch.zeros(2, 16, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        trace_of(x)
    copied = [event.input_shapes[0] for event in profile.events() if event.name == "aten::copy_"]
    assert all(0 in shape for shape in copied)

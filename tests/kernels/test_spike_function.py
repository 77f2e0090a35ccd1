"""`spike_conv2d` and `spike_linear`: what they take, what they leave to torch; gradients are the dense ones."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss
from steadyspike.kernels.conv import function
from steadyspike.kernels.conv.function import spike_conv2d, spike_linear
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.conv.rule import AVX512, forward_by_events
from tests.kernels.built import ALWAYS, needs_kernel

pytestmark = needs_kernel
ORDERS = [torch.contiguous_format, torch.channels_last]


def spikes(*shape, rate=0.15, level=1.0, seed=0, order=torch.contiguous_format):
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate).float() * level
    return x.contiguous(memory_format=order)


def compare(function, reference, x, *parameters):
    """Output and gradients of everything against float64."""
    tensors = [x, *parameters]
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    out = function(*leaves)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    target = reference(*doubles)
    torch.testing.assert_close(out.double(), target, rtol=1e-5, atol=1e-4)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    grads = torch.autograd.grad(out, leaves, g)
    for seen, expected in zip(grads, torch.autograd.grad(target, doubles, g.double())):
        torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=2e-4)
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("level", [1.0, 0.7310586, "per channel"])
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_conv2d_equals_the_dense_one(order, level, rate):
    level = torch.linspace(0.4, 1.6, 20).view(-1, 1, 1) if level == "per channel" else level
    x = spikes(6, 20, 9, 8, rate=rate, level=level, order=order)
    weight, bias = torch.randn(33, 20, 3, 3), torch.randn(33)
    out = compare(
        lambda *t: spike_conv2d(*t, (2, 1), (1, 2), (1, 2), costs=ALWAYS),
        lambda *t: F.conv2d(*t, (2, 1), (1, 2), (1, 2)),
        x, weight, bias,
    )  # fmt: skip
    assert out.is_contiguous(memory_format=order)
    assert out.grad_fn.name() == "_SpikeConvBackward"


@pytest.mark.parametrize("events", [True, False])
def test_the_input_gradient_in_full_equals_the_dense_one(events, monkeypatch):
    """Also of a neuron's output that the rest of the layer processes densely, because its bits are noted."""
    costs = replace(ALWAYS, full=0.0) if events else replace(ALWAYS, dense=0.0, dense_weight=0.0, full=0.0)
    calls, original = [], function.conv_full_input_gradient
    monkeypatch.setattr(function, "conv_full_input_gradient", lambda *args: calls.append(args) or original(*args))
    current = torch.randn(4, 6, 20, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
    current = current.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (4, 6))
    x = ss.LIF()(current.requires_grad_()).flatten(0, 1)
    weight, bias = torch.randn(33, 20, 3, 3, requires_grad=True), torch.randn(33)
    out = spike_conv2d(x, weight, bias, (1, 1), (1, 1), costs=costs)
    assert out.grad_fn.name() == "_SpikeConvBackward"
    seen = torch.autograd.grad(out.square().sum(), (x, weight))
    expected = torch.autograd.grad(F.conv2d(x, weight, bias, padding=1).square().sum(), (x, weight))
    assert len(calls) == 1
    for value, other in zip(seen, expected):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("events", ["all", "forward", "weight gradient"])
def test_a_1x1_kernel_equals_the_dense_one_where_a_part_stays_dense(events):
    costs = {"all": ALWAYS, "forward": ALWAYS, "weight gradient": replace(ALWAYS, add=1e9)}[events]
    costs = replace(costs, add_weight=1e9, product=1e9) if events == "forward" else costs
    x, weight, bias = spikes(6, 20, 5, 4, level=0.7, order=ORDERS[1]), torch.randn(33, 20, 1, 1), torch.randn(33)
    out = compare(lambda *t: spike_conv2d(*t, costs=costs), F.conv2d, x, weight, bias)
    assert out.is_contiguous(memory_format=ORDERS[1]) and out.grad_fn.name() == "_SpikeConvBackward"


@pytest.mark.parametrize("stride", [(2, 2), (3, 1)])
@pytest.mark.parametrize("order", ORDERS)
def test_a_1x1_kernel_with_a_stride_equals_the_dense_one(stride, order, monkeypatch):
    """In channels_last dense gradients are computed for the pixels that are read."""
    calls, original = [], function._gradients_of_read_pixels
    monkeypatch.setattr(function, "_gradients_of_read_pixels", lambda *a: calls.append(0) or original(*a))
    x, weight = spikes(6, 20, 9, 8, order=order), torch.randn(33, 20, 1, 1)
    for costs in (ALWAYS, replace(ALWAYS, add_weight=1e9)):  # the weight gradient by events, and dense
        out = compare(
            lambda *t, c=costs: spike_conv2d(*t, None, stride, costs=c),
            lambda *t: F.conv2d(*t, None, stride),
            x,
            weight,
        )
        assert out.grad_fn.name() == "_SpikeConvBackward"
    assert len(calls) == 2 * (order == torch.channels_last)


def test_a_dense_1x1_layer_with_a_stride_leaves_the_heap_as_it_is(tmp_path):
    """torch's own weight gradient damages it with these shapes and two threads (torch 2.13)."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from steadyspike.nn.event_layers import EventConv2d\n"
        "torch.set_num_threads(2)\n"
        "layer = EventConv2d(8, 16, 1, stride=2, bias=False).to(memory_format=torch.channels_last)\n"
        "x = torch.randn(5, 8, 16, 16).to(memory_format=torch.channels_last)\n"
        "twin = torch.nn.functional.conv2d(x, layer.weight, stride=2)\n"
        "torch.testing.assert_close(layer(x), twin)\n"
        "for _ in range(300):\n"
        "    layer(x).sum().backward()\n"
        "print('whole')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "whole\n", done.stderr


@pytest.mark.parametrize("shape", [(7, 40), (4, 3, 40), (2, 2, 3, 40)])
def test_linear_equals_the_dense_one(shape):
    weight, bias = torch.randn(11, 40), torch.randn(11)
    compare(lambda *t: spike_linear(*t, costs=ALWAYS), F.linear, spikes(*shape, level=0.3), weight, bias)
    compare(lambda *t: spike_linear(*t, costs=ALWAYS), F.linear, spikes(*shape), weight)


def test_frozen_weights_and_inputs_without_gradient():
    x, weight = spikes(4, 16, 6, 6), torch.randn(8, 16, 3, 3)
    assert not spike_conv2d(x, weight, costs=ALWAYS).requires_grad
    x.requires_grad_()
    out = spike_conv2d(x, weight, costs=ALWAYS)
    (dx,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(F.conv2d(x, weight).sum(), x)[0])
    with torch.inference_mode():
        torch.testing.assert_close(spike_conv2d(spikes(4, 16, 6, 6), weight, costs=ALWAYS), out.detach())


def test_a_pool_or_dropout_between_neuron_and_convolution():
    """The largest of some spikes and spikes that are scaled are again one level; averages are not."""
    x, weight = spikes(4, 16, 8, 8, level=0.8), torch.randn(8, 16, 3, 3)
    for layer in (nn.MaxPool2d(2), nn.Dropout(0.5)):
        y = layer(x)
        torch.testing.assert_close(spike_conv2d(y, weight, costs=ALWAYS), F.conv2d(y, weight), rtol=1e-5, atol=1e-5)
    assert spike_conv2d(F.avg_pool2d(x, 2), weight, costs=ALWAYS) is None
    assert spike_conv2d(x + x.roll(1, 3), weight, costs=ALWAYS) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.25, 1.0000001, -1.0])
@pytest.mark.parametrize("where", [(0, 0, 0, 0), (5, 15, 7, 7), (2, 3, 4, 5)])
def test_an_input_that_is_not_spikes_is_left_to_torch(bad, where):
    x = spikes(6, 16, 8, 8)
    x[where] = bad
    assert spike_conv2d(x, torch.randn(8, 16, 3, 3), costs=ALWAYS) is None


@pytest.mark.parametrize("level", [1.0, "per channel"])
def test_a_nan_weight_is_not_lost(level):
    level = torch.linspace(0.4, 1.6, 16).view(-1, 1, 1) if level == "per channel" else level
    weight = torch.randn(8, 16, 3, 3)
    weight[1, 2, 0, 0] = float("nan")
    assert spike_conv2d(spikes(6, 16, 8, 8, rate=0.01, level=level), weight, costs=ALWAYS) is None


def test_a_nan_gradient_is_not_lost():
    x, weight = spikes(6, 16, 8, 8, rate=0.01), torch.randn(8, 16, 3, 3, requires_grad=True)
    out = spike_conv2d(x, weight, costs=ALWAYS)
    g = torch.zeros_like(out)
    g[3, 2, 1, 1] = float("nan")
    (dw,) = torch.autograd.grad(out, weight, g)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight), weight, g)
    assert torch.equal(dw.isnan(), expected.isnan()) and dw.isnan().any()


@pytest.mark.parametrize(("kernel", "padding", "dilation"), [(1, 1, 1), (3, 3, 1), (2, 1, 9), (3, 1, 1)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_gradient_is_not_lost_where_its_output_reads_only_padding(kernel, padding, dilation, bad):
    """Dense, it is multiplied by the zeros of the padding."""
    x, weight = spikes(6, 16, 8, 8, rate=0.01), torch.randn(8, 16, kernel, kernel, requires_grad=True)
    out = spike_conv2d(x, weight, None, (1, 1), (padding, padding), (dilation, dilation), costs=ALWAYS)
    g = torch.ones_like(out)
    g[3, 2, 0, 0] = bad
    (dw,) = torch.autograd.grad(out, weight, g)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight, None, 1, padding, dilation), weight, g)
    assert torch.equal(dw.isnan(), expected.isnan()) and not dw.isfinite().all()


def test_values_are_looked_at_whatever_happened_on_the_way():
    """Changes that autograd does not count are seen all the same."""
    x, weight = spikes(4, 16, 8, 8), torch.randn(8, 16, 3, 3)
    for change in (lambda: x.data.mul_(2), lambda: x.numpy().__imul__(3), lambda: x.neg_()):
        change()
        torch.testing.assert_close(spike_conv2d(x, weight, costs=ALWAYS), F.conv2d(x, weight), rtol=1e-5, atol=1e-4)
    x.data[1, 2, 3, 4] = 0.1
    assert spike_conv2d(x, weight, costs=ALWAYS) is None


def test_an_input_that_changes_later_does_not_change_the_gradient():
    x, weight = spikes(4, 16, 8, 8), torch.randn(8, 16, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(F.conv2d(x, weight).sum(), weight)[0]
    out = spike_conv2d(x, weight, costs=ALWAYS)
    x.zero_()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), weight)[0], expected)
    out = spike_conv2d(spikes(4, 16, 8, 8), weight, costs=ALWAYS)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_where_torch_must_be_seen_it_runs():
    x, weight = spikes(4, 16, 8, 8), torch.randn(8, 16, 3, 3)
    assert spike_conv2d(x.double(), weight.double(), costs=ALWAYS) is None
    assert spike_conv2d(x.bfloat16(), weight.bfloat16(), costs=ALWAYS) is None
    assert spike_conv2d(x[:, :, :, ::2], weight, costs=ALWAYS) is None
    assert spike_conv2d(x[:0], weight, costs=ALWAYS) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert spike_conv2d(x, weight, costs=ALWAYS) is None
    seen = []
    torch.func.vmap(lambda one: seen.append(spike_conv2d(one[None], weight, costs=ALWAYS)) or one)(x)
    assert seen == [None]


def test_gradients_of_gradients_are_refused():
    x, weight = spikes(4, 16, 8, 8), torch.randn(8, 16, 3, 3, requires_grad=True)
    out = spike_conv2d(x, weight, costs=ALWAYS)
    (dw,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        dw.sum().backward()


def test_batches_of_gradients():
    x, weight = spikes(4, 16, 8, 8), torch.randn(8, 16, 3, 3, requires_grad=True)
    out = spike_conv2d(x, weight, costs=ALWAYS)
    g = torch.randn(3, *out.shape)
    (many,) = torch.autograd.grad(out, weight, g, is_grads_batched=True, retain_graph=True)
    for one, seen in zip(g, many):
        torch.testing.assert_close(
            seen, torch.autograd.grad(out, weight, one, retain_graph=True)[0], rtol=1e-4, atol=1e-4
        )


def test_only_bits_are_kept():
    kept = []
    x, weight = spikes(4, 16, 8, 8).requires_grad_(), torch.randn(8, 16, 3, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spike_conv2d(x, weight, costs=ALWAYS)
    assert sum(t.numel() * t.element_size() for t in kept if t is not weight and t.data_ptr() != weight.data_ptr()) <= (
        x.numel() // 8 + 64
    )


def test_the_rule_knows_when_torch_multiplies_matrices():
    """Torch does so for a 1x1 kernel, fewer than 16 images and one thread; that is slow, so events win more often."""

    def most_spikes(images, stride=(1, 1), threads=1):
        g = ConvGeometry(1, images, 256, 16, 16, 256, stride=stride)
        costs = replace(AVX512, call=0.0, threads=threads)
        return sum(forward_by_events(g, n * g.inputs // 100, costs) for n in range(100))

    few = most_spikes(15)
    assert few > most_spikes(16) and few > most_spikes(15, threads=2) and few > most_spikes(15, stride=(2, 2))
    assert most_spikes(16) > 0


def test_the_rule_for_a_stride_above_the_kernel():
    """If the bits are noted, values are not checked, and three quarters of the elements cost nothing."""
    skipping = ConvGeometry(4, 64, 32, 32, 32, 64, (1, 1), (2, 2))
    assert skipping.read_share == 0.25 and replace(skipping, stride=(1, 1)).read_share == 1
    assert replace(skipping, kernel=(1, 2), stride=(2, 3), dilation=(1, 2)).read_share == 0.5
    count = skipping.inputs // 5
    assert forward_by_events(skipping, count, AVX512, noted=True)
    assert not forward_by_events(skipping, count, AVX512, noted=False)
    all_read = replace(skipping, kernel=(3, 3), padding=(1, 1))
    for share in range(2, 60):
        count = all_read.inputs * share // 60
        assert forward_by_events(all_read, count, AVX512, True) >= forward_by_events(all_read, count, AVX512, False)
    third = all_read.inputs // 3  # as in a layer of the zoo's ResNet-19, in which events are faster
    assert forward_by_events(all_read, third, AVX512, noted=True)

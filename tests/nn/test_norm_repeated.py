"""A norm of one image that is the same at every step, and the scan, as one node; test_norm_neuron.py has the others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.fused_norm import repeated_norm_neuron
from steadyspike.nn.neuron import Tap, neurons
from tests.kernels.built import needs_kernel
from tests.nn.norm_cases import assert_close, assert_same_statistics, inputs, layers, step

pytestmark = needs_kernel
STEPS = 5


def repeated(norm: nn.Module, neuron: nn.Module, second: nn.Module | None, y: Tensor) -> Tensor:
    return repeated_norm_neuron(norm, neuron, y, STEPS)


def layer_by_layer(norm: nn.Module, neuron: nn.Module, second: nn.Module | None, y: Tensor) -> Tensor:
    x = norm(y)
    return neuron(x.expand(STEPS, *x.shape[1:]))


def frame(dtype: torch.dtype, layout: str = "channels_last") -> list[Tensor]:
    torch.manual_seed(1)
    return [inputs("none", dtype, layout)[0][:1]]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [None, 6])
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_layers_one_by_one(fused: list[bool], layout: str, channels: int | None, training: bool) -> None:
    parts = layers("none", torch.float64, channels=channels).train(training)
    other = copy.deepcopy(parts)
    other[1].backend = "reference"
    got, want = (
        step(call, of, frame(torch.float64, layout)) for call, of in ((repeated, parts), (layer_by_layer, other))
    )
    assert fused == [False]
    assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_float32_agrees_to_rounding() -> None:
    got, want = (step(call, layers("none"), frame(torch.float32)) for call in (repeated, layer_by_layer))
    assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert_same_statistics(got, want)


@pytest.mark.parametrize("training", [True, False])
def test_a_look_at_the_current_changes_no_output(fused: list[bool], training: bool) -> None:
    outputs = []
    for looks in (False, True):
        parts = layers("none").train(training)
        seen: list[int] = []
        if looks:
            parts[1].register_forward_hook(lambda layer, args, out, seen=seen: seen.append(args[0].shape[0]))
        outputs.append(step(repeated, parts, frame(torch.float32)))
        assert seen == ([STEPS] if looks else [])
    assert fused == [False]
    assert torch.equal(outputs[0]["out"], outputs[1]["out"])
    assert_same_statistics(*outputs)
    assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_a_tap_sees_all_steps(fused: list[bool]) -> None:
    parts, shapes = layers("none"), []
    parts[1].taps["shape"] = Tap(lambda layer, x, u0, result: shapes.append(x.shape[0]), current=False)
    step(repeated, parts, frame(torch.float32))
    assert shapes == [STEPS] and fused == [False]


def test_a_hooked_norm_is_called_once(fused: list[bool]) -> None:
    parts, shapes = layers("none"), []
    parts[0].register_forward_hook(lambda layer, args, out: shapes.append(out.shape[0]))
    assert step(repeated, parts, frame(torch.float32))["out"].shape[0] == STEPS
    assert shapes == [1] and fused == []


def test_only_one_frame_is_kept_for_the_backward() -> None:
    saved: list[int] = []
    parts, (y,) = layers("none"), frame(torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        repeated(*parts, None, y.requires_grad_())
    assert max(saved) == y.numel()


def test_batches_of_gradients_and_second_derivatives() -> None:
    parts, (y,) = layers("none", torch.float64), frame(torch.float64)
    out = repeated(*parts, None, y.requires_grad_())
    g = torch.randn(3, *out.shape, dtype=torch.float64)
    got = torch.autograd.grad(out, [y, parts[0].weight], g, retain_graph=True, is_grads_batched=True)
    want = [torch.autograd.grad(out, [y, parts[0].weight], one, retain_graph=True) for one in g]
    for batched, alone in zip(got, zip(*want)):
        torch.testing.assert_close(batched, torch.stack(alone))
    (first,) = torch.autograd.grad(out.sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        first.sum().backward()


def test_the_stem_of_a_network_is_one_node(fused: list[bool]) -> None:
    """Static images and the same images as frames give the same spikes."""
    net = ss.models.create("resnet19_tiny").eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        static, frames = net(x), net(torch.stack([x] * net.timesteps))
    torch.testing.assert_close(static, frames)
    assert len(fused) == 2 * len(neurons(net))

"""`use_events` on models: the same numbers, the same checkpoints, and out of the way where it must be."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.kernels.conv import function
from steadyspike.kernels.conv.rule import Costs
from steadyspike.nn.event_layers import EventConv2d, EventLinear
from steadyspike.nn.time import Folded
from tests.kernels.built import ALWAYS, needs_kernel

pytestmark = needs_kernel


@pytest.fixture
def always(monkeypatch):
    """Events whatever they cost."""
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, ALWAYS))


@pytest.fixture
def calls(monkeypatch, always):
    """How many layers ran by events."""
    seen = []
    forward = function._forward

    def counted(x, weight, bias, plan, packed):
        seen.append(packed is not None)
        return forward(x, weight, bias, plan, packed)

    monkeypatch.setattr(function, "_forward", counted)
    return seen


def network(channels=None):
    torch.manual_seed(0)
    neuron = lambda c: ss.LIF(channels=channels and c)  # noqa: E731
    return nn.Sequential(
        Folded(nn.Conv2d(2, 16, 3, padding=1)),
        neuron(16),
        Folded(nn.Conv2d(16, 24, 3, stride=2, padding="valid")),
        neuron(24),
        Folded(nn.MaxPool2d(2)),
        Folded(nn.Conv2d(24, 8, 3, padding=1)),
        neuron(8),
        nn.Flatten(2),
        nn.Linear(8 * 2 * 2, 5),
    )


def step(model, x):
    """Output and all gradients of one training step."""
    model.zero_grad()
    out = model(x)
    out.square().mean().backward()
    return out.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


def same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        torch.testing.assert_close(one[1][name], other[1][name], rtol=1e-3, atol=1e-5, msg=name)


X = torch.rand(3, 4, 2, 11, 11, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("channels", [None, True], ids=["one V", "a V per channel"])
@pytest.mark.parametrize("order", ["planes", "channels_last"])
def test_a_step_is_the_same(calls, channels, order):
    model = network(channels)
    if order == "channels_last":
        model.to(memory_format=torch.channels_last)
    events = ss.use_events(copy.deepcopy(model))
    same(step(events, X), step(model, X))
    assert calls == [True] * 3  # all but the first, whose input is an image


def test_it_is_undone(calls):
    model = ss.use_events(network())
    assert [type(m) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))] == [EventConv2d] * 3 + [
        EventLinear
    ]
    ss.use_dense(ss.use_events(model))
    assert {type(m) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))} == {nn.Conv2d, nn.Linear}
    model(X)
    assert calls == []


def test_copies_pickles_and_checkpoints(calls):
    model = ss.use_events(network())
    expected = step(model, X)
    same(step(copy.deepcopy(model), X), expected)
    same(step(pickle.loads(pickle.dumps(model)), X), expected)
    plain = network()
    plain.load_state_dict(model.state_dict())
    assert list(plain.state_dict()) == list(model.state_dict())
    assert len(calls) == 9


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(calls, reentrant):
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    model = network().requires_grad_()
    for m in model.modules():  # statistics of the first run are those of the second only if they do not move
        if isinstance(m, ss.LIF):
            m.init = ss.ConstantInit(0.0)
    expected = step(model, X)
    again = ss.use_events(Checkpointed(*copy.deepcopy(model)))
    x = X.clone().requires_grad_()
    same(step(again, x), expected)
    assert len(calls) == 6


def test_with_save_memory(calls):
    model = network()
    expected = step(copy.deepcopy(model), X)
    same(step(ss.save_memory(ss.use_events(copy.deepcopy(model))), X), expected)
    same(step(ss.use_events(ss.save_memory(copy.deepcopy(model))), X), expected)
    assert len(calls) == 6


def test_under_compile_and_autocast_it_is_dense(calls):
    model = ss.use_events(network()).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(X)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), ss.use_dense(copy.deepcopy(model))(X))
    assert calls == []


def test_export_sees_the_dense_layers(calls):
    layer = nn.Sequential(nn.Conv2d(2, 3, 3))
    exported = torch.export.export(ss.use_events(layer), (torch.ones(1, 2, 5, 5),))
    assert "conv2d" in str(exported.graph)
    assert calls == []


def test_estimates_run_by_events_what_follows_a_neuron(calls):
    model = ss.use_events(network())
    x = torch.empty(4, 8, *X.shape[2:], device="meta")
    by_events = ss.memory_estimate(model, x).saved
    assert calls == [True]  # the others read a pool's output or are small, whose spikes only values could tell
    assert by_events < ss.memory_estimate(ss.use_dense(model), x).saved


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_other_padding_and_groups_are_left_alone(calls):
    x = (torch.rand(4, 8, 6, 6) < 0.2).float()
    for layer in (
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 8, 2, padding="same"),
    ):
        expected = layer(x)
        assert torch.equal(ss.use_events(layer)(x), expected)
    assert calls == []
    layer = nn.Conv2d(8, 8, 3, padding="same", dilation=2)
    torch.testing.assert_close(ss.use_events(copy.deepcopy(layer))(x), layer(x))
    assert calls == [True]


def test_a_convolution_that_an_instance_replaced_runs(calls):
    layer, x = nn.Conv2d(8, 8, 3), (torch.rand(4, 8, 6, 6) < 0.2).float()
    layer._conv_forward = lambda x, weight, bias: nn.functional.conv2d(x, 2 * weight, bias)
    expected = layer(x)
    assert torch.equal(ss.use_events(layer)(x), expected) and calls == []


def test_small_layers_are_dense_without_looking():
    """A layer that takes microseconds is not worth a look at its input."""
    layer = ss.use_events(nn.Linear(8, 4))
    out = layer(torch.ones(2, 8).requires_grad_())
    assert out.grad_fn.name() != "_SpikeConvBackward"


NEVER = Costs(1e-6, 1e-6, 1e-6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_dense_layer_keeps_the_bits_of_a_neurons_output(monkeypatch, kernel, stride, channels_last):
    """Not the output itself; outputs and gradients are those of torch's layer."""
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, NEVER))
    torch.manual_seed(0)
    neuron, conv = ss.LIF(), nn.Conv2d(16, 8, kernel, stride, kernel // 2)
    plain = nn.Sequential(copy.deepcopy(neuron), Folded(copy.deepcopy(conv)))
    events = ss.use_events(nn.Sequential(neuron, Folded(conv)))
    x = torch.randn(4, 4, 16, 8, 8)
    if channels_last:
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (4, 4))
        plain, events = (m.to(memory_format=torch.channels_last) for m in (plain, events))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spikes = events[0](x)
        count = len(kept)
        events[1](spikes)
    assert all(t.untyped_storage().data_ptr() != spikes.untyped_storage().data_ptr() for t in kept[count:])
    assert sum(t.nbytes for t in kept[count:]) < spikes.nbytes / 4 + conv.weight.nbytes
    plain[0].load_state_dict(events[0].state_dict())
    same(step(events, x), step(plain, x))


def test_a_dense_layer_in_evaluation_is_torchs_own(monkeypatch):
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, NEVER))
    conv, neuron = EventConv2d(16, 8, 3), ss.LIF().eval()
    with torch.no_grad():
        spikes = neuron(torch.randn(4, 4, 16, 8, 8))
        assert function.spike_conv2d(spikes.flatten(0, 1), conv.weight, conv.bias) is None

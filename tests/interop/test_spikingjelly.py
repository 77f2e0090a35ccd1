"""SpikingJelly 2.0's neurons, converted: the same outputs and gradients in float64, in every supported case."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.interop.adopted import Adopted
from tests.interop.compare import assert_equal, current

sj = pytest.importorskip("spikingjelly.activation_based", reason="SpikingJelly is not installed")
from spikingjelly.activation_based import functional, layer, monitor, neuron, surrogate  # noqa: E402

pytestmark = pytest.mark.peer
T, B = 5, 4


def converted(model: nn.Module) -> nn.Module:
    return ss.convert(copy.deepcopy(model), report=None)


def stepped(model: nn.Module, x: Tensor) -> Tensor:
    """A user's loop over time, with SpikingJelly's reset at its end."""
    out = torch.stack([model(x_t) for x_t in x])
    functional.reset_net(model)
    return out


def whole(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    functional.reset_net(model)
    return out


def run_for(mode: str):
    return stepped if mode == "s" else whole


KINDS = {
    "lif": lambda **o: neuron.LIFNode(tau=1.7, **o),
    "no decay of the input": lambda **o: neuron.LIFNode(tau=3.0, decay_input=False, **o),
    "plif": lambda **o: neuron.ParametricLIFNode(init_tau=2.5, **o),
    "plif, no decay of the input": lambda **o: neuron.ParametricLIFNode(init_tau=2.5, decay_input=False, **o),
    "if": lambda **o: neuron.IFNode(**o),
}


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("v_reset", [0.0, None, -0.4, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_neuron_and_reset(kind: str, v_reset: float | None, detach: bool, mode: str) -> None:
    node = KINDS[kind](v_threshold=0.8, v_reset=v_reset, detach_reset=detach, step_mode=mode).double()
    ours = converted(node)
    assert isinstance(ours, Adopted) and ours.why_no_kernel() is None
    assert_equal(run_for(mode), node, ours, current(T, B, 3, 2))


SURROGATES = [
    surrogate.Sigmoid(3.0), surrogate.ATan(2.5), surrogate.PiecewiseQuadratic(0.7), surrogate.Rect(0.6),
    surrogate.PiecewiseExp(1.5), surrogate.SoftSign(2.0), surrogate.SuperSpike(1.3), surrogate.Erf(2.0),
    surrogate.NonzeroSignLogAbs(1.0), surrogate.PiecewiseLeakyReLU(0.9, 0.02), surrogate.S2NN(4.0, 1.0),
    surrogate.QPseudoSpike(2.0), surrogate.LeakyKReLU(0.1, 1.1), surrogate.FakeNumericalGradient(0.3),
    surrogate.LogTailedReLU(0.1), surrogate.SquarewaveFourierSeries(2, 8), surrogate.DeterministicPass(),
]  # fmt: skip


@pytest.mark.parametrize("function", SURROGATES, ids=lambda f: type(f).__name__)
def test_every_surrogate(function: nn.Module) -> None:
    for detach, mode in itertools.product((False, True), ("s", "m")):
        node = neuron.LIFNode(surrogate_function=function, detach_reset=detach, step_mode=mode)
        assert_equal(run_for(mode), node, converted(node), current(T, B, 3))


@pytest.mark.parametrize("name", ["Sigmoid", "ATan", "PiecewiseQuadratic", "Rect"])
def test_the_common_surrogates_run_on_the_kernels(name: str) -> None:
    node = ss.convert(neuron.LIFNode(surrogate_function=getattr(surrogate, name)()), report=None)
    assert node.why_no_kernel() is None
    slow = ss.convert(neuron.LIFNode(surrogate_function=surrogate.Erf()), report=None)
    assert "Erf" in slow.why_no_kernel()


def test_a_neuron_at_exactly_its_threshold_fires_in_both() -> None:
    x = torch.tensor([2.0, 1.0, 0.5, 2.0, 3.0]).view(5, 1, 1).double()
    for node in (neuron.LIFNode(tau=2.0), neuron.IFNode(v_reset=None), neuron.IFNode(v_threshold=0.5, v_reset=-0.5)):
        node.step_mode = "m"
        expected = whole(node, x)
        assert bool(expected.any())
        assert torch.equal(whole(converted(node), x), expected)


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("v_reset", [0.0, None, -0.4])
def test_recorded_potentials(v_reset: float | None, mode: str) -> None:
    def run(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        out = torch.stack([model(x_t) for x_t in x]) if mode == "s" else model(x)
        actual = out, model.v_seq, model.v
        functional.reset_net(model)
        return actual

    node = neuron.LIFNode(tau=1.7, v_reset=v_reset, step_mode=mode, store_v_seq=True)
    assert_equal(run, node, converted(node), current(T, B, 3))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        layer.SeqToANNContainer(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)),
        neuron.LIFNode(tau=2.0, detach_reset=True, surrogate_function=surrogate.ATan(), step_mode="m"),
        layer.MaxPool2d(2, step_mode="m"),
        layer.MultiStepContainer(nn.Conv2d(4, 4, 3, padding=1), neuron.IFNode(v_reset=None)),
        layer.Flatten(step_mode="m"),
        layer.Linear(4 * 9, 6, step_mode="m"),
        neuron.ParametricLIFNode(step_mode="m"),
    ).double()
    with torch.no_grad():
        for weights in (model[3][0], model[5]):
            weights.weight.mul_(4.0)
    return model


def test_a_network_in_its_containers() -> None:
    model = network()
    ours = converted(model)
    assert sum(isinstance(m, Adopted) for m in ours.modules()) == 3
    assert_equal(whole, model, ours, current(T, B, 2, 6, 6))
    model.eval(), ours.eval()
    assert_equal(whole, model, ours, current(T, B, 2, 6, 6))


def test_a_single_step_network_in_the_users_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        layer.Linear(6, 8), neuron.LIFNode(), layer.Linear(8, 3), neuron.LIFNode(v_reset=None)
    ).double()
    nn.init.normal_(model[2].weight)
    ours = converted(model)
    for seed in range(2):  # the second window starts again
        assert_equal(stepped, model, ours, 3 * current(T, B, 6, seed=seed))
    functional.set_step_mode(ours, "m")
    functional.set_step_mode(model, "m")
    assert_equal(whole, model, ours, 3 * current(T, B, 6))


def test_multi_step_calls_need_no_reset() -> None:
    ours, x = converted(network()).eval(), current(T, B, 2, 6, 6)
    single = ours[3][1]
    first = ours(x)
    single.reset()  # the neuron in the MultiStepContainer takes single steps
    assert torch.equal(ours(x), first)
    (ours(x).sum() + first.sum()).backward()


def test_an_own_initial_potential_and_other_shapes() -> None:
    node = neuron.LIFNode(step_mode="s")
    node.set_reset_value("v", 0.25)
    node.reset()
    assert_equal(stepped, node, converted(node), current(T, B, 3))
    ours = converted(node)
    for shape in ((), (3,), (2, 3)):
        x = current(T, *shape)
        assert torch.equal(stepped(ours, x), stepped(node, x))


def test_names_weights_hooks_and_modes_stay() -> None:
    model = network().float().eval()
    seen = []
    handle = model[1].register_forward_hook(lambda m, a, o: seen.append(o.shape))
    before = dict(model.named_parameters())
    state = copy.deepcopy(model.state_dict())
    names = [n for n, _ in model.named_modules()]
    ids = [id(m) for m in model.modules()]
    assert ss.convert(model, report=None) is model
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(p is before[n] for n, p in model.named_parameters())
    assert set(names) <= {n for n, _ in model.named_modules()} and set(ids) <= {id(m) for m in model.modules()}
    assert list(model.state_dict()) == list(state)
    assert not any(m.training for m in model.modules())
    model(current(T, B, 2, 6, 6).float())
    assert len(seen) == 1
    handle.remove()
    model(current(T, B, 2, 6, 6).float())
    assert len(seen) == 1


def test_state_dicts_load_both_ways() -> None:
    model, ours = network(), converted(network())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    ours.load_state_dict(model.state_dict())
    assert_equal(whole, model, ours, current(T, B, 2, 6, 6))
    other = network()
    other.load_state_dict(ours.state_dict())
    functional.reset_net(model)
    assert_equal(whole, other, model, current(T, B, 2, 6, 6))


def test_copies_and_pickles_after_a_forward() -> None:
    ours, x = converted(network()), current(T, B, 2, 6, 6)
    ours(x)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        functional.reset_net(ours)
        copied.eval(), ours.eval()
        assert torch.equal(copied(x), ours(x))
        assert type(copied[1]) is type(ours[1])


def test_undo_brings_the_original_back() -> None:
    model, x = network(), current(T, B, 2, 6, 6)
    twin = copy.deepcopy(model)
    before = {type(m) for m in model.modules()}
    attributes = {n: set(vars(m)) for n, m in model.named_modules()}
    for change in (ss.convert, ss.stabilize):
        change(model, report=None)
        model(x)
        assert ss.undo(model) is model
        functional.reset_net(model)
        assert {type(m) for m in model.modules()} == before
        assert {n: set(vars(m)) for n, m in model.named_modules()} == attributes
        assert list(model.state_dict()) == list(twin.state_dict())
        model.load_state_dict(twin.state_dict())
        assert_equal(whole, twin, model, x)


def test_changes_of_the_original_attributes_are_seen() -> None:
    ours, node, x = converted(neuron.LIFNode(step_mode="m")), neuron.LIFNode(step_mode="m"), current(T, B, 3)
    ours(x)
    for n in (ours, node):
        n.v_threshold, n.tau, n.detach_reset = 0.5, 4.0, True
        n.surrogate_function = surrogate.ATan(3.0)
        n.surrogate_function.alpha = 1.5
    assert_equal(whole, node, ours, x)


def test_recorders_and_helpers_find_the_neurons() -> None:
    ours, x = converted(network()), current(T, B, 2, 6, 6)
    ours[1].store_v_seq = True
    spikes = monitor.OutputMonitor(ours, neuron.BaseNode)
    potentials = monitor.AttributeMonitor("v_seq", False, ours, neuron.LIFNode)
    with spikes, potentials:
        ours(x)
        assert spikes.monitored_layers == ["1", "3.1", "6"]
        assert potentials.records[0].shape == (T, B, 4, 6, 6)
    functional.reset_net(ours)
    functional.detach_net(ours)
    functional.set_step_mode(ours, "s")
    functional.set_step_mode(ours, "m")
    ours(x).sum().backward()


def test_explicit_state_calls() -> None:
    from spikingjelly.activation_based.base import to_functional_forward

    node, x = neuron.LIFNode(tau=1.7, v_reset=-0.2), current(T, B, 3)
    results = []
    for n in (node, converted(node)):
        step, states = to_functional_forward(n), (-0.2,)
        outs = []
        for x_t in x:
            (out,), states = step((x_t,), states)
            outs.append(out)
        results.append((torch.stack(outs), states[0]))
    for theirs, ours in zip(*results):
        torch.testing.assert_close(ours, theirs)


class Louder(neuron.LIFNode):
    """The same dynamics, with an argument and a method of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(tau=3.0, step_mode="m")
        self.title = name

    def shout(self) -> str:
        return self.title.upper()


class OtherCharge(neuron.LIFNode):
    def single_step_functional_forward(self, inputs, states, **kwargs):
        return super().single_step_functional_forward((2 * inputs[0],), states)


class OldStyle(neuron.IFNode):
    def neuronal_charge(self, x):
        self.v = self.v + 2 * x


class Mixin(neuron.BaseNode):
    def materialize_states(self, inputs, states, step_mode):
        return super().materialize_states(inputs, (0.5,), step_mode)


class Mixed(neuron.LIFNode, Mixin):
    """Overrides a method between LIFNode and BaseNode."""


def test_subclasses_with_the_same_dynamics_are_converted() -> None:
    node = Louder("one")
    ours = converted(node)
    assert isinstance(ours, Louder) and ours.shout() == "ONE"
    assert_equal(whole, node, ours, current(T, B, 3))


def patched() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node.forward = lambda x: x  # type: ignore[method-assign]
    return node


def learned_threshold() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node.v_threshold = nn.Parameter(torch.tensor(1.0))
    return node


LEFT = {
    "its own single_step_functional_forward": OtherCharge,
    "its own neuronal_charge": OldStyle,
    "its own materialize_states": Mixed,
    "its own forward": patched,
    "v_threshold is a tensor": learned_threshold,
    "QIFNode is not one": neuron.QIFNode,
    "KLIFNode is not one": neuron.KLIFNode,
    "HalfThresholdIFNode is not one": neuron.HalfThresholdIFNode,
    "keeps its own state": lambda: layer.LinearRecurrentContainer(nn.Linear(3, 3), 3, 3),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_is_named_with_the_reason(reason: str) -> None:
    module = LEFT[reason]()
    model = nn.Sequential(nn.Linear(3, 3), module)
    cls = type(module)
    ss.convert(model, report=None)
    assert type(module) is cls
    (row,) = [r for r in model.conversion.left if r.layer == "1"]
    assert reason in row.remarks[0]
    assert reason in str(model.conversion)


def test_a_conversion_in_the_middle_of_a_sequence_goes_on() -> None:
    x, node, ours = current(9, B, 3), neuron.LIFNode(tau=3.0), neuron.LIFNode(tau=3.0)
    expected = torch.stack([torch.stack((node(x_t), node.v)) for x_t in x])
    actual = [torch.stack((ours(x_t), ours.v)) for x_t in x[:3]]
    ss.convert(ours, report=None)
    actual += [torch.stack((ours(x_t), ours.v)) for x_t in x[3:6]]
    ss.undo(ours)
    actual += [torch.stack((ours(x_t), ours.v)) for x_t in x[6:]]
    torch.testing.assert_close(torch.stack(actual), expected)


class HalfThreshold(neuron.LIFNode):
    """A constant that is computed: a property hides the attribute."""

    @property
    def v_threshold(self) -> float:
        return 0.5

    @v_threshold.setter
    def v_threshold(self, value: float) -> None:
        pass


class NoInputDecay(neuron.LIFNode):
    @property
    def decay_input(self) -> bool:
        return True

    @decay_input.setter
    def decay_input(self, value: bool) -> None:
        pass


class NamedAsOurs(neuron.LIFNode):
    """A helper method with the name of one of this library's."""

    def rest(self) -> str:
        return "mine"


def with_own_attribute() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node.family = "mine"
    return node


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (HalfThreshold, "v_threshold"),
        (NoInputDecay, "decay_input"),
        (NamedAsOurs, "rest"),
        (with_own_attribute, "family"),
    ],
)
def test_a_neuron_whose_names_mean_something_else_is_left(make, name: str) -> None:
    model = nn.Sequential(make(), neuron.LIFNode())
    ss.convert(model, report=None)
    (row,) = model.conversion.left
    assert row.layer == "0" and f"its own {name}" in row.remarks[0]


class CalledTwice(nn.Module):
    """One neuron object after two layers: SpikingJelly's second call continues from the first one's potential."""

    def __init__(self, places: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = layer.Linear(6, 6), layer.Linear(6, 6), layer.Linear(6, 3)
        self.lif = neuron.LIFNode(step_mode="m")
        self.own = neuron.LIFNode(step_mode="m")
        if places:
            self.again = self.lif

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self.lif(self.fc2(self.lif(3 * self.fc1(x)) * 5))))


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("change", [ss.convert, ss.stabilize])
def test_a_neuron_called_twice_is_left_and_named(change, places: bool) -> None:
    torch.manual_seed(0)
    model, x = CalledTwice(places).double(), current(T, B, 6)
    before = whole(model, x)
    ours = change(copy.deepcopy(model), x, report=None)
    (row,) = ours.conversion.left
    assert row.layer == "lif" and "calls it 2 times" in row.remarks[0]
    assert ("lif, again" in row.remarks[0]) == places
    assert isinstance(ours.own, Adopted) and not isinstance(ours.lif, Adopted)
    if change is ss.convert:
        torch.testing.assert_close(whole(ours, x), before, rtol=1e-10, atol=1e-10)
    words = [(c.name, c.ok) for c in ours.conversion.check.checks]
    functional.reset_net(ours)
    assert words == [(c.name, c.ok) for c in ss.check_model(ours, x).checks]


def test_a_shared_neuron_is_left_without_an_example_too() -> None:
    ours = ss.convert(CalledTwice(places=True), report=None)
    assert [row.layer for row in ours.conversion.left] == ["lif"]


def test_a_neuron_at_two_places_that_is_called_once_is_converted() -> None:
    model = nn.Sequential(layer.Linear(6, 6), neuron.LIFNode(step_mode="m"))
    model.extra = nn.ModuleDict({"same": model[1]})
    model.forward = lambda x: model[1](model[0](x))  # type: ignore[method-assign]
    ours = ss.convert(model, current(T, B, 6).float(), report=None)
    assert not ours.conversion.left


def test_counting_calls_leaves_neurons_that_are_not_converted_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(layer.Linear(6, 6), neuron.QIFNode(step_mode="m"), neuron.LIFNode(step_mode="m")).double()
    x = 3 * current(T, B, 6)
    before = whole(model, x)
    ours = ss.convert(model, x, report=None)
    assert [row.layer for row in ours.conversion.left] == ["1"]
    torch.testing.assert_close(whole(ours, x), before, rtol=1e-10, atol=1e-10)

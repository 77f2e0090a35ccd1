"""snnTorch 1.0's Leaky, converted: the same spikes, potentials and gradients, in the user's loop over time."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.interop.adopted import Adopted
from tests.interop.compare import assert_equal, current

snn = pytest.importorskip("snntorch", reason="snnTorch is not installed")
from snntorch import surrogate, utils  # noqa: E402

pytestmark = pytest.mark.peer
T, B = 6, 4


def converted(model: nn.Module) -> nn.Module:
    return ss.convert(copy.deepcopy(model), report=None)


def explicit(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """snnTorch's usual loop: spikes and potentials of all steps."""
    mem, spikes, mems = layer.init_leaky(), [], []
    for x_t in x:
        spk, mem = layer(x_t, mem)
        spikes.append(spk.double())
        mems.append(mem)
    return torch.stack(spikes), torch.stack(mems)


def hidden(layer: nn.Module, x: Tensor) -> Tensor:
    layer.reset_mem()
    return torch.stack([layer(x_t).double() for x_t in x])


class DoubleATan(surrogate.ATan):
    """snnTorch's arctangent with spikes of the input's dtype, so that gradients are not rounded to float32."""

    @staticmethod
    def forward(ctx, input_: Tensor, alpha: float) -> Tensor:
        return surrogate.ATan.forward(ctx, input_, alpha).to(input_.dtype)


def double_atan(x: Tensor) -> Tensor:
    return DoubleATan.apply(x, 2.0)


@pytest.mark.parametrize("delay", [True, False])
@pytest.mark.parametrize("mechanism", ["subtract", "zero", "none"])
@pytest.mark.parametrize("learned", [False, True])
def test_every_reset(learned: bool, mechanism: str, delay: bool) -> None:
    learn = {"learn_beta": learned, "learn_threshold": learned}
    options = {"reset_mechanism": mechanism, "reset_delay": delay, **learn}
    layer = snn.Leaky(0.7, 0.8, double_atan, **options).double()
    assert_equal(explicit, layer, converted(layer), current(T, B, 3))


GRADIENTS = [
    surrogate.atan(1.5), surrogate.fast_sigmoid(5), surrogate.sigmoid(4), surrogate.straight_through_estimator(),
    surrogate.triangular(), surrogate.spike_rate_escape(), surrogate.SFS(5), surrogate.heaviside(),
    surrogate.custom_surrogate(lambda x, g, s: 0.3 * g),
]  # fmt: skip


@pytest.mark.parametrize("gradient", GRADIENTS, ids=lambda g: g.__qualname__.split(".")[0])
def test_every_surrogate(gradient) -> None:
    layer = snn.Leaky(0.7, spike_grad=gradient, learn_threshold=True).double()
    # Its spikes, and with them the gradients that reach them, are float32.
    assert_equal(explicit, layer, converted(layer), current(T, B, 3), tolerance=1e-6)


def test_hidden_state_vectors_and_graded_spikes() -> None:
    layer = snn.Leaky(0.7, spike_grad=double_atan, init_hidden=True).double()
    assert_equal(hidden, layer, converted(layer), current(T, B, 3))
    layer = snn.Leaky(
        torch.tensor([0.5, 0.7, 1.2]), torch.tensor([0.4, 0.8, 1.0]), double_atan, learn_beta=True
    ).double()
    assert_equal(explicit, layer, converted(layer), current(T, B, 3))
    layer = snn.Leaky(torch.rand(3, 1, 1), 1.0, double_atan, learn_threshold=True).double()
    assert_equal(explicit, layer, converted(layer), current(T, B, 3, 2, 2))
    layer = snn.Leaky(0.7, 1.0, double_atan, graded_spikes_factor=1.5, learn_graded_spikes_factor=True).double()
    assert_equal(explicit, layer, converted(layer), current(T, B, 3))
    layer = snn.Leaky(0.7, init_hidden=True, output=True)
    spk, mem = converted(layer)(current(B, 3).float())
    assert spk.shape == mem.shape == (B, 3)
    with pytest.raises(TypeError, match="init_hidden"):
        converted(layer)(spk, mem)


def test_a_neuron_at_exactly_its_threshold_does_not_fire() -> None:
    layer = snn.Leaky(0.5)
    x = torch.tensor([1.0, 0.5, 1.5, 0.0]).view(4, 1, 1)
    expected = explicit(layer, x)
    actual = explicit(converted(layer), x)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1]) and expected[0][0] == 0


class Net(nn.Module):
    """The network of snnTorch's tutorial 5, smaller."""

    def __init__(self, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.lif1 = nn.Linear(6, 20), snn.Leaky(beta=0.95, **options)
        self.fc2, self.lif2 = nn.Linear(20, 4), snn.Leaky(beta=0.95, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, mems = [], []
        for _ in range(T):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            mems.append(mem2)
        return torch.stack(spikes), torch.stack(mems)


def compare_in_float32(original: nn.Module, ours: nn.Module, run, x: Tensor) -> None:
    """snnTorch's networks do not run in float64, since its spikes are float32."""
    results = []
    for model in (original, ours):
        model.zero_grad()
        outputs = run(model, x)
        sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in outputs).backward()
        results.append([*(o.detach() for o in outputs), *(p.grad for p in model.parameters())])
    assert bool(results[0][0].any())
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_tutorial_network() -> None:
    net, x = Net(), 2 * current(B, 6).float()
    ours = converted(net)
    compare_in_float32(net, ours, lambda m, x: m(x), x)
    for name, value in net.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    assert net.state_dict().keys() == ours.state_dict().keys()


def convolutional() -> nn.Sequential:
    """The network of snnTorch's tutorial 6, smaller: hidden states in a Sequential."""
    torch.manual_seed(0)
    grad = surrogate.fast_sigmoid(slope=25)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), snn.Leaky(0.5, spike_grad=grad, init_hidden=True), nn.Flatten()),
        *(nn.Linear(36, 5), snn.Leaky(0.5, spike_grad=grad, init_hidden=True, output=True)),
    )
    nn.init.normal_(net[4].weight, mean=0.1, std=0.5)
    return net


def forward_pass(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    utils.reset(net)
    steps = [net(x_t) for x_t in x]
    return torch.stack([s for s, _ in steps]), torch.stack([m for _, m in steps])


def test_a_tutorial_network_with_hidden_states() -> None:
    net, x = convolutional(), 2 * current(T, B, 1, 8, 8).float()
    twin = convolutional()
    ss.convert(net, report=None)
    for _ in range(2):  # utils.reset ends the window of a converted network too
        compare_in_float32(twin, net, forward_pass, x)
    assert isinstance(net[2], snn.Leaky) and isinstance(net[2], Adopted)


def trained_for_three_steps(net: nn.Module, run, x: Tensor) -> list[float]:
    """The losses of three steps; the target is fixed, so that they must fall."""
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=1e-2), []
    for _ in range(3):
        mems = run(net, x)[1]
        loss = nn.functional.cross_entropy(mems.mean(0), torch.arange(mems.shape[1]) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tutorial", [5, 6])
def test_tutorial_networks_train(tutorial: int) -> None:
    make, run, x = {
        5: (Net, lambda m, x: m(x), 2 * current(B, 6).float()),
        6: (convolutional, forward_pass, 2 * current(T, B, 1, 8, 8).float()),
    }[tutorial]
    theirs = trained_for_three_steps(make(), run, x)
    assert trained_for_three_steps(ss.convert(make(), report=None), run, x) == pytest.approx(theirs, rel=1e-4)
    stable = trained_for_three_steps(ss.stabilize(make(), report=None), run, x)
    assert theirs[-1] < theirs[0] and stable[-1] < stable[0]


def test_state_dicts_load_both_ways_and_undo() -> None:
    trained, options = Net(learn_beta=True, learn_threshold=True), {"learn_beta": True, "learn_threshold": True}
    with torch.no_grad():
        for p in trained.parameters():
            p.add_(0.01)
    for change in (ss.convert, ss.stabilize):
        ours, twin = change(Net(**options), report=None), Net(**options)
        ours.load_state_dict(trained.state_dict())
        assert ours.lif1.threshold.item() == pytest.approx(1.01, abs=1e-5)
        assert (1 - ours.lif1.leak).item() == pytest.approx(0.96, abs=1e-5)
        if change is ss.convert:
            twin.load_state_dict(ours.state_dict())
            assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), trained.state_dict().values()))
        else:
            assert {n for n, _ in ours.named_parameters()} >= {"lif1.k", "lif1.w"}
            assert "lif1.beta" not in dict(ours.named_parameters())
        ss.undo(ours)
        assert type(ours.lif1) is snn.Leaky
        assert ours.state_dict().keys() == trained.state_dict().keys()
        assert {n for n, _ in ours.named_parameters()} == {n for n, _ in trained.named_parameters()}
        ours.load_state_dict(trained.state_dict())
        x = 2 * current(B, 6).float()
        assert torch.equal(ours(x)[1], trained(x)[1])


@pytest.mark.parametrize("mechanism", ["subtract", "zero"])
def test_stabilise_learns_and_starts_at_the_running_mean(mechanism: str) -> None:
    net, x = ss.stabilize(Net(reset_mechanism=mechanism), report=None), 3 * current(B, 6).float()
    net(x)
    assert torch.equal(net.lif1.running_mean, torch.zeros(1))  # the window is still open
    out, _ = net(x)  # init_leaky ends it
    assert float(net.lif1.running_mean) != 0
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    seen = net.lif1.running_mean.clone()
    with ss.window(net):
        net(x)
    assert not torch.equal(net.lif1.running_mean, seen)
    with torch.no_grad():
        net.lif1.k.fill_(1.0)
    spikes, _ = explicit(net.lif1, current(T, B, 3).float())
    torch.testing.assert_close(spikes[spikes > 0].unique().float(), net.lif1.threshold.detach())  # TrSG: V S


def test_utils_reset_ends_the_window_of_hidden_states() -> None:
    net, x = ss.stabilize(convolutional(), report=None), 2 * current(T, B, 1, 8, 8).float()
    forward_pass(net, x)
    forward_pass(net, x)
    assert float(net[2].running_mean) != 0
    net.eval()
    utils.reset(net)
    again = [forward_pass(net, x)[0] for _ in range(2)]
    assert torch.equal(*again)


def test_the_statistics_are_the_potential_after_the_reset() -> None:
    layer = ss.stabilize(snn.Leaky(0.5, reset_mechanism="subtract"), report=None)
    layer(torch.tensor([[1.5, 0.2]]), layer.init_leaky())  # fires; the next step takes 1.0 off half of 1.5
    layer.init_leaky()
    assert float(layer.running_mean) == pytest.approx(0.1 * (1.5 - 1.0 / 0.5))


def test_copies_and_pickles_after_a_forward() -> None:
    net, x = ss.stabilize(Net(), report=None), 2 * current(B, 6).float()
    with ss.window(net):
        net(x)[0].sum().backward()
    net.eval()
    net(x)[0].sum().backward()
    assert torch.equal(copy.deepcopy(net)(x)[1], net(x)[1])
    layer = ss.convert(snn.Leaky(0.5, spike_grad=double_atan), report=None)
    layer(x)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[1], explicit(layer, x[None])[1][0])


class OwnState(snn.Leaky):
    def _base_state_function(self, input_):
        return self.mem + input_


LEFT = {
    "its own _base_state_function": lambda: OwnState(0.5),
    "quantised": lambda: snn.Leaky(0.5, state_quant=lambda m: m),
    "Synaptic is not one": lambda: snn.Synaptic(0.5, 0.5),
    "RLeaky is not one": lambda: snn.RLeaky(0.5, linear_features=3),
    "Lapicque is not one": lambda: snn.Lapicque(beta=0.5),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_is_named_with_the_reason(reason: str) -> None:
    model = nn.Sequential(LEFT[reason]())
    ss.convert(model, report=None)
    assert reason in str(model.conversion) and not model.conversion.converted


def test_a_check_runs_on_a_network_that_returns_spikes_and_potentials() -> None:
    net = Net()
    ss.convert(net, 2 * current(B, 6).float(), batch_dim=0, report=None)
    names = {c.name: c.ok for c in net.conversion.check.checks}
    assert names["batch"] and names["repeatable"]
    assert "one step later" in str(net.conversion)

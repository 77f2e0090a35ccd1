"""Integer networks: the literal recursion, close to the network they come from, refused if they cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, fold
from steadyspike.deploy.hardware import chip_report
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle, trained


def agreement(network, integer, x):
    expected, _ = spikes_of_layers(network, x)
    seen = {}
    out = integer.run(x, watch=lambda node, value: seen.__setitem__(node.name, value > 0) if node.op == "lif" else None)
    same = [float((seen[name] == s).double().mean()) for name, s in expected.items()]
    return sum(same) / len(same), out


def literal(weights, v, keep, gain, start, spikes):
    """The integer recursion for one dense layer in Python's own integers."""
    outs = []
    u = [start] * len(weights)
    for step in spikes:
        current = [sum(w for w, s in zip(row, step) if s) for row in weights]
        out = []
        for i, c in enumerate(current):
            total = keep * u[i] + gain * c
            m = abs(total) // 4096 * (1 if total >= 0 else -1)
            out.append(int(m >= v))
            u[i] = m - v * out[-1]
        outs.append(out)
    return outs


def test_the_simulator_is_the_literal_recursion():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 12), ss.LIF(), nn.Linear(12, 6, bias=False), ss.LIF(threshold=0.4, tau=1.7)
    ).eval()
    with torch.no_grad():
        model[0].weight.abs_()
        model[2].weight.add_(0.1)
        model[3].init.running_mean.fill_(0.13)
    x = 2 * torch.rand(6, 5, 8)
    network = fold(model, x)
    integer = IntegerNetwork(network)
    seen = {}
    integer.run(x, watch=lambda node, value: seen.__setitem__(node.name, value))
    constants = integer.nodes["3"].tensors
    weights = integer.nodes["2"].tensors["weight"].to(torch.int64).tolist()
    v, keep, gain, start = (int(constants[k]) for k in ("threshold", "keep", "gain", "start"))
    assert max(abs(w) for row in weights for w in row) == 127
    for sample in range(5):
        spikes = seen["1"][:, sample].to(torch.int64).tolist()
        assert literal(weights, v, keep, gain, start, spikes) == seen["3"][:, sample].to(torch.int64).tolist()
    assert 0 < float(seen["3"].mean()) < 1


@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny", "vggsnn_tiny"])
def test_sixteen_bits_are_nearly_the_network(name):
    model, x = trained(name)
    network = fold(model, x)
    share, out = agreement(network, IntegerNetwork(network, 16), x)
    # Decays have 12 bits, so a few spikes flip in later steps and move the outputs; the first step shows the weights.
    expected = network(x)
    assert share > 0.98 and torch.allclose(out[0], expected[0], atol=1e-3 * float(expected.abs().max()))


def test_eight_bits_agree_on_most_spikes_and_weights_fit():
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    integer = IntegerNetwork(network)
    share, _ = agreement(network, integer, x)
    assert share > 0.9
    for node in network.graph:
        for what, tensor in integer.nodes[node.name].tensors.items():
            assert torch.equal(tensor, tensor.round())
            if what == "weight" or what.startswith("edge"):
                assert tensor.abs().max() <= 127, node.name


def test_what_has_no_integer_form_is_named():
    model, x = trained("ms_resnet_tiny")
    with pytest.raises(CannotFold, match="reads real numbers"):
        IntegerNetwork(fold(model, x))
    model, x = trained("cnn7_tiny", norm="tebn")
    with pytest.raises(CannotFold, match="step to step"):
        IntegerNetwork(fold(model, x))
    with pytest.raises(ValueError, match="bits"):
        IntegerNetwork(fold(*trained("cnn7_tiny")), 1)


def test_chips_say_what_fits():
    model, x = trained("resnet19_tiny")
    integer = IntegerNetwork(fold(model, x))
    loihi, speck = chip_report(integer, "loihi2"), chip_report(integer, "speck")
    assert "soft reset needs its own neuron program" in loihi and "stem.conv_norm.conv" in loihi
    assert "a leak that multiplies" in speck
    hard, x = trained("cnn7_tiny", neuron=lambda: ss.LIF(reset="hard"))
    assert "soft reset" not in chip_report(IntegerNetwork(fold(hard, x)), "loihi2")
    with pytest.raises(ValueError, match="loihi2, speck"):
        chip_report(integer, "tpu")


def test_averages_of_uneven_windows_or_over_time_are_refused():
    class Early(nn.Module):
        def forward(self, x):
            return x.mean(0)

    torch.manual_seed(0)
    x = 2 * torch.rand(4, 2, 2, 8, 8)
    start = Folded(nn.Conv2d(2, 4, 3, padding=1)), ss.LIF(0.3)
    uneven = nn.Sequential(*start, Folded(nn.AdaptiveAvgPool2d(3)), nn.Flatten(2), nn.Linear(36, 5)).eval()
    with pytest.raises(CannotFold, match="windows of different sizes"):
        IntegerNetwork(fold(uneven, x))
    early = nn.Sequential(*start, nn.Flatten(2), Early(), nn.Linear(256, 5)).eval()
    with pytest.raises(CannotFold, match="averaged over time before a layer"):
        IntegerNetwork(fold(early, x))


class Around(nn.Module):
    """conv, fire, what ``middle`` makes of the spikes, fire, mean over pixels, linear, and a readout if asked for."""

    def __init__(self, middle: Callable[[Around, Tensor], Tensor], gradient: str, readout: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.w = (Folded(nn.Conv2d(c, 8, k, padding=k // 2)) for c, k in ((2, 3), (8, 3), (8, 1)))
        self.fire, self.other, self.late = (ss.LIF(v, gradient=gradient) for v in (0.3, 0.02, 0.1))
        self.pool, self.most = Folded(nn.AvgPool2d(2)), Folded(nn.MaxPool2d(2))
        self.wide, self.middle, self.o = Folded(nn.Upsample(scale_factor=2, mode="bilinear")), middle, nn.Linear(8, 3)
        self.last = ss.Readout() if readout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.late(self.middle(self, self.fire(self.a(x))))
        return self.last(self.o(y.flatten(3).mean(-1)))


WITH_AVERAGES = {
    "a layer and an average": lambda n, s: n.w(n.most(s)) + n.pool(s),
    "a layer and a scaled average": lambda n, s: n.w(n.most(s)) + 3 * n.pool(s),
    "an average of averages": lambda n, s: n.w(n.pool(n.pool(s))) + 0.4 * n.pool(n.pool(s)),
    "averages and spikes": lambda n, s: 0.5 * n.pool(s) + 0.3 * n.most(s),
    "a mean over one axis": lambda n, s: n.w(s) + 0.6 * s.mean(-1, keepdim=True),
    "a product of averages": lambda n, s: n.w(n.pool(s) * n.pool(n.other(n.b(s)))),
    "an average times spikes": lambda n, s: n.w(n.pool(s) * n.most(n.other(n.b(s)))),
}


@pytest.mark.parametrize("gradient", ["as", "trsg"])
@pytest.mark.parametrize("name", WITH_AVERAGES)
@torch.no_grad()
def test_averages_of_spikes_keep_their_weight(name, gradient):
    torch.manual_seed(1)
    x = 3 * torch.rand(4, 3, 2, 8, 8)
    network = fold(settle(Around(WITH_AVERAGES[name], gradient), x), x)
    share, out = agreement(network, IntegerNetwork(network, bits=16), x)
    assert share > 0.999 and not network.proofs[0].silent
    assert torch.allclose(out, network(x), atol=0.05 * float(network(x).abs().max()))
    integer = IntegerNetwork(network)
    for node in integer.nodes.values():
        weights = [t for what, t in node.tensors.items() if what == "weight" or what.startswith("edge")]
        assert all(weight.abs().max() <= 127 for weight in weights)


@torch.no_grad()
def test_the_potential_of_a_readout_is_in_real_units():
    torch.manual_seed(1)
    x = 3 * torch.rand(4, 3, 2, 8, 8)
    network = fold(settle(Around(lambda n, s: n.w(s), "trsg", readout=True), x), x)
    out = IntegerNetwork(network, bits=16)(x)
    assert torch.allclose(out, network(x), atol=0.05 * float(network(x).abs().max()))


@pytest.mark.parametrize(
    ("middle", "named"),
    [
        (lambda n, s: n.wide(s), "upsample reads spikes without a weight"),
        (lambda n, s: torch.cat([n.w(s)[:, :, :4], s[:, :, 4:]], 2), "concat reads spikes without a weight"),
        (lambda n, s: 0.5 * n.w(s) + 0.1, "a constant times a real current"),
    ],
)
def test_spikes_without_a_weight_are_named_before_anything_runs(middle, named):
    torch.manual_seed(1)
    x = 3 * torch.rand(4, 3, 2, 8, 8)
    network = fold(settle(Around(middle, "as"), x), x)
    with pytest.raises(CannotFold, match=named):
        IntegerNetwork(network)

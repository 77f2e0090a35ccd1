"""NIR: the faithful graph is exact under NIR's own equations, and the round trip through our importer is bit-equal."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, fold
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.nn.time import Folded
from tests.deploy.nir_equations import simulate
from tests.deploy.trained import settle, trained

nir = pytest.importorskip("nir")

from steadyspike.deploy.from_nir import from_nir  # noqa: E402
from steadyspike.deploy.to_nir import export_nir, to_nir  # noqa: E402


def small(**options):
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 6, 3, padding=1)), ss.LIF(**options), Folded(nn.AvgPool2d(2)), Folded(nn.Conv2d(6, 4, 3)),
        ss.LIF(**options), nn.Flatten(2), nn.Linear(16, 5),
    )  # fmt: skip
    nn.init.uniform_(model[0].layer.weight, 0, 0.12)
    nn.init.uniform_(model[3].layer.weight, -0.2, 0.3)
    x = 2 * torch.rand(5, 3, 2, 8, 8)
    settle(model, x)
    return fold(model, x), x


@pytest.mark.parametrize("options", [{}, {"reset": "hard"}, {"decay_input": False, "threshold": 2.0}, {"strict": True}])
def test_the_faithful_graph_is_exact_under_nirs_equations(options):
    network, x = small(**options)
    spikes, out = spikes_of_layers(network.double(), x.double())
    got, seen = simulate(to_nir(network.float()), x.double())
    assert all(0.01 < float(s.double().mean()) < 0.99 for s in spikes.values())
    for name, s in spikes.items():
        assert torch.equal(seen[name], s), name
    assert torch.allclose(got, out, atol=1e-6)


def in_one_dimension(neuron, readout):
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv1d(2, 4, 3, padding=1, stride=2)), neuron, nn.Flatten(2), nn.Linear(16, 3), readout
    )
    nn.init.uniform_(model[0].layer.weight, -0.3, 0.6)
    x = 2 * torch.rand(6, 3, 2, 8)
    settle(model, x)
    return fold(model, x), x


@pytest.mark.parametrize("mode", ["faithful", "shift", "lif"])
@pytest.mark.parametrize(
    ("readout", "kinds"),
    [
        (ss.nn.Readout(3.0), {"IF", "LI"}),
        (ss.nn.Readout(3.0, decay_input=False), {"IF", "LI"}),
        (ss.nn.Readout(None), {"IF", "I"}),
    ],
)
def test_convolutions_in_one_dimension_neurons_without_leak_and_readouts(tmp_path, mode, readout, kinds):
    network, x = in_one_dimension(ss.nn.IF(reset="hard", init="zero"), readout)
    graph = to_nir(network, mode)
    assert {type(node).__name__ for node in graph.nodes.values()} >= {"Conv1d", *kinds}
    spikes, out = spikes_of_layers(network.double(), x.double())
    got, seen = simulate(graph, x.double())
    ((name, s),) = spikes.items()
    assert torch.equal(seen[name], s) and 0.01 < float(s.double().mean()) < 0.99
    assert torch.allclose(got, out, atol=1e-6)
    again = from_nir(export_nir(network.float(), tmp_path / "net.nir", mode))
    assert torch.allclose(again(x), network(x), atol=1e-6)


def test_what_nirs_neurons_without_leak_cannot_be():
    for neuron, reason in (
        (ss.nn.IF(reset="soft", init="zero"), "reset of 'soft'"),
        (ss.nn.IF(init=0.3), "start at 0"),
    ):
        with pytest.raises(CannotFold, match=reason):
            to_nir(in_one_dimension(neuron, ss.nn.Readout())[0])


def test_a_hard_reset_becomes_plain_lif_nodes_by_a_shift():
    network, x = small(reset="hard")
    graph = to_nir(network, "shift")
    kinds = {type(node).__name__ for node in graph.nodes.values()}
    assert kinds == {"Input", "Conv2d", "LIF", "AvgPool2d", "Flatten", "Affine", "Output"}
    neurons = network.graph.neurons()
    for node in neurons:
        start, made = node.tensors["start"].double(), graph.nodes[node.name]
        assert float(start.abs().min()) > 0.01, "without MP-Init's potential there is nothing to shift"
        assert (made.v_reset == made.v_leak).all() and (made.v_reset == -start.expand(1, *node.shape)[0].numpy()).all()
    spikes, out = spikes_of_layers(network.double(), x.double())
    got, seen = simulate(graph, x.double())
    assert all(torch.equal(seen[name], s) and 0.01 < float(s.double().mean()) < 0.99 for name, s in spikes.items())
    assert torch.allclose(got, out, atol=1e-6)


def test_a_soft_reset_has_no_shift_form():
    with pytest.raises(CannotFold, match="soft reset cannot be written in mode 'shift'"):
        to_nir(small()[0], "shift")


@pytest.mark.parametrize("mode", ["faithful", "shift", "lif"])
def test_float64_networks_stay_float64(tmp_path, mode):
    network, x = small(reset="hard")
    network = network.double()
    with torch.no_grad():  # a V and weights that float32 does not have
        for name, buffer in network.named_buffers():
            buffer.mul_(1 + 1e-10) if name.endswith(("threshold", "weight")) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mode lif: what it cannot hold
        again = from_nir(export_nir(network, tmp_path / "net.nir", mode))
    x = x.double()
    assert {b.dtype for b in again.buffers()} == {torch.float64}
    assert torch.equal(next(again.buffers()), next(network.buffers()))
    expected, out = spikes_of_layers(network, x)
    got, other = spikes_of_layers(again, x)
    assert all(torch.equal(got[name.replace(".", "_")], s) for name, s in expected.items())
    assert torch.allclose(other, out, atol=1e-12, rtol=1e-12)
    for node in network.graph.neurons():
        twin = again.node(node.name.replace(".", "_"))
        for what, tensor in network.node(node.name).tensors.items():
            assert torch.allclose(twin.tensors[what], tensor, rtol=1e-12, atol=1e-14), what


@pytest.mark.parametrize(
    ("mode", "options"),
    [("shift", {"reset": "hard"}), ("shift", {"reset": "hard", "decay_input": False, "threshold": 2.0})]
    + [(m, o) for m in ("faithful", "lif") for o in ({}, {"reset": "hard"}, {"decay_input": False, "threshold": 2.0})],
)
def test_the_round_trip_through_a_file_is_bit_equal(tmp_path, mode, options):
    network, x = small(**options)
    if mode == "lif":
        with pytest.warns(UserWarning, match="cannot represent"):
            path = export_nir(network, tmp_path / "net.nir", mode)
    else:
        path = export_nir(network, tmp_path / "net.nir", mode)
    again = from_nir(path)
    assert torch.equal(again(x), network(x))
    for node in network.graph.neurons():
        other = again.graph[node.name.replace(".", "_")]
        assert all(torch.equal(other.tensors[k], node.tensors[k]) for k in ("threshold", "leak", "start"))


@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny", "vggsnn_tiny"])
def test_networks_round_trip(tmp_path, name):
    model, x = trained(name)
    network = fold(model, x)
    again = from_nir(export_nir(network, tmp_path / "net.nir"))
    frames = x if x.ndim == 5 else x.expand(4, *x.shape)
    assert torch.allclose(again(frames), network(x), atol=1e-5)


def test_what_nir_cannot_hold_is_named():
    model, x = trained("resnet34_tiny")
    with pytest.raises(CannotFold, match="max_pool"):
        to_nir(fold(model, x))
    model, x = trained("cnn7_tiny", norm="tebn")
    with pytest.raises(CannotFold, match="step to step"):
        to_nir(fold(model, x))
    with pytest.raises(ValueError, match="faithful, shift, lif"):
        to_nir(small()[0], "exact")


def test_ties_fire_on_both_sides():
    """A potential exactly on the threshold fires here; NIR fires above, so it gets the number below."""
    lif = ss.LIF(threshold=0.5, tau=2.0, learn=(), init="zero", gradient="rs")
    model = nn.Sequential(nn.Linear(1, 1, bias=False), lif).eval()
    nn.init.ones_(model[0].weight)
    x = torch.ones(3, 1, 1)  # M[1] = 0.5, exactly V
    network = fold(model, x)
    got, _ = simulate(to_nir(network), x.double())
    assert network(x).flatten().tolist() == got.flatten().tolist() == [1.0, 1.0, 1.0]

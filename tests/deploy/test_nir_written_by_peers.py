"""Files that SpikingJelly, snnTorch and Norse write are read with the spikes that their own networks have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("nir")

from steadyspike.deploy.from_nir import from_nir

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def linear(ins, outs, kind=nn.Linear):
    layer = kind(ins, outs)
    nn.init.uniform_(layer.weight, -0.2, 0.6)
    return layer


def spikingjelly(x):
    activation = pytest.importorskip("spikingjelly.activation_based")
    from spikingjelly.activation_based.nir_exchange.to_nir import export_to_nir

    neuron, kind = activation.neuron, activation.layer.Linear
    net = nn.Sequential(
        linear(6, 8, kind), neuron.LIFNode(tau=2.0, v_reset=0.0), linear(8, 5, kind), neuron.IFNode(v_reset=0.0)
    )
    graph = export_to_nir(net, x[0])
    activation.functional.reset_net(net)
    return graph, torch.stack([net(frame) for frame in x]), None


def snntorch(x):
    snn = pytest.importorskip("snntorch")
    from snntorch.export_nir import export_to_nir

    def leaky(n, beta):
        return snn.Leaky(torch.full((n,), beta), torch.ones(n), reset_mechanism="zero", init_hidden=True,
                         reset_delay=False)  # fmt: skip

    net = nn.Sequential(linear(6, 8), leaky(8, 0.6), linear(8, 5), leaky(5, 0.5))
    graph = export_to_nir(net, x[0, 0])
    net[1].reset_mem(), net[3].reset_mem()
    return graph, torch.stack([net(frame) for frame in x]), None


def norse(x):
    """Norse writes dt / tau_mem_inv as tau, a thousandth of the true one: read with a thousandth of its step."""
    norse = pytest.importorskip("norse.torch")
    net = norse.SequentialState(linear(6, 8), norse.LIFBoxCell(), linear(8, 5), norse.LIFBoxCell())
    for layer in (net[0], net[2]):
        layer.weight.data *= 8
    graph, state, outs = norse.to_nir(net, x[0, 0]), None, []
    for frame in x:
        out, state = net(frame, state)
        outs.append(out)
    return graph, torch.stack(outs), 1e-6


@pytest.mark.parametrize("peer", [spikingjelly, snntorch, norse])
@torch.no_grad()
def test_their_files_give_their_spikes(peer):
    torch.manual_seed(0)
    x = 2 * torch.rand(10, 4, 6)
    graph, expected, dt = peer(x)
    assert 0.02 < float(expected.mean()) < 0.98 and torch.equal(from_nir(graph, dt)(x), expected)

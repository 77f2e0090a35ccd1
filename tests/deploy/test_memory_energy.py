"""Energy with memory: the published crossings, SpikingJelly's traffic counter, and the verdict's own arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import fold
from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.memory_energy import (
    HARDWARE,
    arriving,
    crossing,
    dense_synapse,
    spiking_synapse,
    traffic,
    twin_bits,
    verdict,
)
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle, trained


@pytest.mark.parametrize(
    ("change", "published"),
    [
        ({"weight": 0.5}, 0.0539),  # these two rows define the energy of a weight's bit
        ({"weight": 1.5}, 0.0608),
        ({}, 0.057),  # the published crossing
        ({"dense": 0.5}, 0.0341),
        ({"event": 0.5}, 0.1080),
    ],
)
def test_the_published_crossing_and_how_it_moves(change, published):
    """T = 5, 4-bit weights, fan-in 4096, with one constant at half or one and a half times its value."""
    usual = HARDWARE["neuromorphic"]
    changed = replace(usual, **{name: factor * getattr(usual, name) for name, factor in change.items()})
    assert crossing(5, 4, 4096, changed) == pytest.approx(published, abs=0.0005)


def test_arithmetic_hardly_moves_the_crossing():
    """Published: at most 0.05 percentage points for half or one and a half times the energy of an AC or MAC."""
    usual = HARDWARE["neuromorphic"]
    for name, factor in itertools.product(("accumulate", "mac"), (0.5, 1.5)):
        changed = replace(usual, **{name: factor * getattr(usual, name)})
        assert abs(crossing(5, 4, 4096, changed) - crossing(5)) < 0.00055


@pytest.mark.parametrize(
    ("timesteps", "weight_bits", "fan_in", "published"),
    [
        (2, 4, 4096, 0.104),
        (2, 8, 4096, 0.123),
        (3, 8, 4096, 0.082),
        (1, 8, 4096, 0.297),  # defines the energy of a MAC: dense bits, so that everything but the arithmetic is equal
        (5, 4, 64, 0.054),  # defines the bits of a potential
    ],
)
def test_other_published_crossings(timesteps, weight_bits, fan_in, published):
    assert crossing(timesteps, weight_bits, fan_in) == pytest.approx(published, abs=0.0007)


@pytest.mark.parametrize(("weight_bits", "published"), [(4, 0.12), (8, 0.17)])
def test_the_rate_above_which_spikes_move_as_dense_bits(weight_bits, published):
    """Published: between 12 and 17 %, depending on the width of a weight."""
    h = HARDWARE["neuromorphic"]
    rates = [k / 1000 for k in range(1, 1000)]
    slopes = [arriving(r + 0.0001, 1, weight_bits, h) - arriving(r, 1, weight_bits, h) for r in rates]
    switch = next(r for r, slope in zip(rates, slopes) if slope < 0.5 * slopes[0])
    assert switch == pytest.approx(published, abs=0.0099)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("timesteps", [1, 2, 5, 8])
def test_both_twins_cost_the_same_at_the_crossing(hardware, timesteps):
    h, rate = HARDWARE[hardware], crossing(timesteps, 8, 100, hardware)
    twin = dense_synapse(twin_bits(timesteps), 8, 100, h)
    assert spiking_synapse(rate, timesteps, 8, 100, h) == pytest.approx(twin)
    assert spiking_synapse(0.99 * rate, timesteps, 8, 100, h) < twin


def test_levels_of_the_twin():
    assert [twin_bits(t) for t in (1, 2, 3, 4, 5, 7, 8, 15)] == [1, 2, 2, 3, 3, 3, 4, 4]


def test_a_network_at_the_crossing_costs_as_much_as_its_twin():
    """A network whose synapses see the crossing's rate is where the verdict turns."""
    model, x = trained("resnet19_tiny")
    network = fold(model, x, check=False)
    report = count_operations(network, [x])
    first = verdict(network.graph, report)
    for layer in report.layers:
        if layer.kind not in ("real", "neuron"):
            layer.acs = first.crossing * layer.dense
    second = verdict(network.graph, report)
    assert second.rate == pytest.approx(second.crossing)
    # The neurons' updates are spread evenly over the fan-in in the formula, and layer by layer here.
    assert second.spiking == pytest.approx(second.quantised, rel=0.01)
    assert first.spiking_wins == (first.rate < first.crossing)


def test_cheap_events_help_and_nothing_else_changes():
    model, x = trained("cnn7_tiny")
    network = fold(model, x, check=False)
    report = count_operations(network, [x])
    usual, cheap = (verdict(network.graph, report, hardware=name) for name in ("neuromorphic", "cheap-events"))
    assert cheap.spiking < usual.spiking and cheap.quantised == usual.quantised and cheap.crossing > usual.crossing


def test_every_hardware_is_complete():
    assert all(value > 0 for h in HARDWARE.values() for value in vars(h).values())


@pytest.mark.peer
def test_traffic_equals_spikingjellys_counter():
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    counters = pytest.importorskip("spikingjelly.activation_based.op_counter")
    torch.manual_seed(0)
    convs = [nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)]
    ours = nn.Sequential(Folded(convs[0]), ss.LIF(init="zero"), Folded(convs[1]), ss.LIF(init="zero"))
    nn.init.uniform_(convs[0].weight, 0, 1)
    x = torch.rand(4, 3, 2, 8, 8)
    settle(ours, x)
    network = fold(ours, x, batch_dim=1, check=False)
    counted = traffic(count_operations(network, [x]))
    # The same spikes in SpikingJelly's layers: a neuron that hands on what our first layer emitted.
    spikes = ours[1].spikes(ours[1](ours[0](x)))
    counter = counters.NeuromorphicMemoryAccessCounter()
    theirs = nn.Sequential(convs[1], neuron.IFNode())
    with torch.no_grad(), counters.ModuleCounterMode([counter], model=theirs):
        for step in spikes:
            theirs(step)
    total = counter.get_counts()["Global"]
    stem_reads = 4 * 8 * 8 * 18 * 4 * 3  # the stem reads real numbers: every operation reads its weight
    assert counted.weight_reads * 3 == stem_reads + total["weight_read_bytes"] / 4
    assert counted.state_accesses * 3 == 2 * 4 * 3 * (4 * 8 * 8 + 6 * 4 * 4)
    assert total["neuron_state_read_bytes"] == total["neuron_state_write_bytes"] == 4 * 4 * 3 * 6 * 4 * 4

"""NeuroBench's metrics of folded networks: equal to our counts, or every operation between them is accounted for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss
from steadyspike.deploy import fold
from steadyspike.deploy.kinds import REAL, SPIKES
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.deploy.neurobench import BINARY, UNSEEN, Comparison, LayeredNetwork, compare
from steadyspike.nn.time import Folded
from tests.deploy.test_fold import TINY
from tests.deploy.trained import settle, trained

pytest.importorskip("neurobench", reason="NeuroBench is not installed (requirements-peers.txt)")


def compared(network: ss.deploy.FoldedNetwork, x: torch.Tensor) -> Comparison:
    samples = x.shape[1] if network.graph.input.timed else x.shape[0]
    return compare(network, x, torch.zeros(samples, dtype=torch.long), batch_size=2)


def assert_explained(comparison: Comparison) -> None:
    """Their totals are the sums of the rows, and every row of spikes or real numbers adds up to the last operation."""
    operations, n = comparison.theirs["SynapticOperations"], comparison.samples
    rows = comparison.synapses
    assert operations["Effective_ACs"] * n == sum(row.their_acs for row in rows)
    assert operations["Effective_MACs"] * n == sum(row.their_macs for row in rows)
    assert operations["Dense"] * n == sum(row.dense - row.borders for row in rows)
    theirs = {"ACs": operations["Effective_ACs"], "MACs": operations["Effective_MACs"], "Dense": operations["Dense"]}
    for name, parts in comparison.differences().items():
        assert comparison.ours[name] + sum(parts.values()) == pytest.approx(theirs[name], rel=1e-12), name
    for row in rows:
        if row.kind == SPIKES:
            assert row.acs - row.zeros == row.their_acs and row.their_macs == 0
            assert row.shared == 0
        elif row.kind == REAL:
            assert row.macs - row.borders - row.zeros == row.their_macs + row.their_acs
        else:
            assert row.acs - row.shared - row.zeros == row.their_macs + row.their_acs and row.shared >= 0
    for name in ("Footprint", "ConnectionSparsity", "ActivationSparsity"):
        assert comparison.theirs[name] == pytest.approx(
            comparison.ours[name], abs=5e-5 if "Connection" in name else 1e-9
        )


@pytest.mark.parametrize("name", TINY)
def test_registered_networks(name):
    model, x = trained(name)
    for mode in ("exact", "split", "graded"):
        try:
            network = fold(model, x, mode=mode, check=False)
            break
        except ss.deploy.CannotFold:
            continue
    comparison = compared(network, x)
    assert comparison.theirs["SynapticOperations"]["Effective_ACs"] > 0
    assert_explained(comparison)


def test_layers_compute_what_the_network_computes():
    model, x = trained("resnet19_tiny", norm="tebn")
    network = fold(model, x)
    torch.testing.assert_close(LayeredNetwork(network)(x), network(x), rtol=0, atol=0)


def two_layers(threshold: float = 1.0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    nn.init.uniform_(first.weight, 0, 1)
    model = nn.Sequential(Folded(first), ss.LIF(threshold=threshold), Folded(second), ss.LIF())
    x = torch.rand(4, 3, 1, 8, 8)
    return settle(model, x), x


def test_a_threshold_other_than_one_counts_as_accumulates():
    """V S is not binary: NeuroBench counts no AC in the model itself; the folded network's spikes are 0 and 1."""
    model, x = two_layers(threshold=0.7)
    comparison = compared(fold(model, x, batch_dim=1, check=False), x)
    second = comparison.synapses[1]
    assert second.their_acs == second.acs > 0
    assert_explained(comparison)


def test_further_spikes_of_an_average_are_counted_by_hand():
    """Two of four spikes in a window are two ACs per output for us and one operation for NeuroBench."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 1)
    nn.init.uniform_(first.weight, 0, 1)
    model = nn.Sequential(Folded(first), ss.LIF(), Folded(nn.AvgPool2d(2)), Folded(second), ss.LIF())
    x = torch.rand(4, 3, 1, 8, 8)
    settle(model, x)
    network = fold(model, x, batch_dim=1, check=False)
    spikes, _ = spikes_of_layers(network, x)
    windows = F.avg_pool2d(spikes["1"].float().flatten(0, 1), 2, divisor_override=1)
    row = compared(network, x).synapses[1]
    assert row.shared == 6 * float((windows - 1).clamp(min=0).sum()) > 0
    assert row.their_macs + row.their_acs == 6 * int((windows > 0).sum())


def test_zero_weights_are_skipped_and_accounted_for():
    model, x = two_layers()
    with torch.no_grad():
        model[2].layer.weight[:, ::2] = 0
    comparison = compared(fold(model, x, batch_dim=1, check=False), x)
    assert comparison.synapses[1].zeros > 0
    assert 0 < comparison.theirs["ConnectionSparsity"] < 1
    assert_explained(comparison)


def test_events_and_transposed_convolutions_are_explained():
    """Events of 0 and 1 are MACs here and ACs there; a transposed convolution is not a layer for NeuroBench."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 3, 2, stride=2)
    nn.init.uniform_(first.weight, 0, 1)
    model = nn.Sequential(Folded(first), ss.LIF(), Folded(second), ss.LIF())
    x = (torch.rand(4, 3, 2, 8, 8) > 0.6).float()
    settle(model, x)
    comparison = compared(fold(model, x, batch_dim=1, check=False), x)
    assert_explained(comparison)
    assert comparison.differences()["ACs"][BINARY] > 0 and comparison.differences()["Dense"][UNSEEN] < 0


@pytest.mark.parametrize(("model", "missing"), [(nn.Linear(6, 4), "neurons"), (ss.LIF(), "weights")])
def test_a_network_without_neurons_or_weights_is_one_line(model, missing):
    x = torch.rand(4, 3, 6)
    network = fold(nn.Sequential(model).eval(), x, batch_dim=1, check=False)
    with pytest.raises(ss.deploy.CannotFold, match=f"no {missing}"):
        compared(network, x)

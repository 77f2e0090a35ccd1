"""The C export of the zoo's networks, on the whole test sets that they were made for."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path

import pytest

from steadyspike.commands.common import run_or_name
from steadyspike.commands.shared.deployed import folded
from steadyspike.train.files.folder import find_packaged
from steadyspike.train.run.loading import load_run
from tests.deploy.c_program import CProgram, compiler, differing, images_of, reference

REAL = os.environ.get("STEADYSPIKE_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_data,
    pytest.mark.skipif(REAL is None, reason="needs real data: set STEADYSPIKE_DATA"),
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler"),
]


def opened(name, folder, integer):
    """The C program of a network of the zoo, and its whole test set in batches."""
    if find_packaged(name) is None:
        pytest.skip(f"the zoo has no {name}")
    run = run_or_name(name)
    network, _ = folded(run, Path(REAL))
    axis = 1 if network.graph.input.timed else 0
    return CProgram(network, folder, integer), images_of(load_run(run, Path(REAL))).split(100, axis)


def whole_test_set(name, folder, integer):
    """How many spikes of the whole test set differ, and how many there are."""
    c, parts = opened(name, folder, integer)
    wrong = fired = 0
    for part in parts:
        differs, spikes, _ = differing(c, part, c.network.graph.timesteps, integer)
        wrong, fired = wrong + differs, fired + spikes
    return wrong, fired


@pytest.mark.parametrize("name", ["digits-cnn7", "nmnist-cnn7", "cifar10-resnet19"])
def test_no_spike_of_the_whole_test_set_differs_in_integers(name, tmp_path):
    wrong, fired = whole_test_set(name, tmp_path, True)
    assert fired > 0 and wrong == 0


@pytest.mark.parametrize("name", ["digits-cnn7", "nmnist-cnn7"])
def test_float32_moves_at_most_one_spike_in_10000(name, tmp_path):
    """By another order of the same sums."""
    wrong, fired = whole_test_set(name, tmp_path, False)
    assert fired > 0 and wrong <= 1e-4 * fired


def test_float32_of_a_deep_network_is_as_close_to_float64_as_torch(tmp_path):
    """In ResNet-19 a spike that rounding moves moves others in later layers, in torch's float32 too.

    So images are counted: those with another spike than the folded network in float64. The C file may have as many as
    torch, and twice the standard deviation of the difference of two such counts.
    """
    c, parts = opened("cifar10-resnet19", tmp_path, False)
    steps, exact = c.network.graph.timesteps, copy.deepcopy(c.network).double()
    in_c = in_torch = moved = fired = 0
    for part in parts[:30]:
        expected, _ = reference(exact, part.double(), steps, False)
        spikes = c.spikes(part, steps)[0], reference(c.network, part, steps, False)[0]
        of_c, of_torch = (sum((s[name] != expected[name]).sum((0, 2, 3, 4)) for name in expected) for s in spikes)
        in_c, in_torch = in_c + int((of_c > 0).sum()), in_torch + int((of_torch > 0).sum())
        moved, fired = moved + int(of_c.sum()), fired + sum(int(s.sum()) for s in expected.values())
    assert 0 < in_torch <= 100
    assert in_c <= in_torch + 2 * math.sqrt(in_c + in_torch)
    assert moved <= 2e-4 * fired

"""The C export of the zoo's networks, on the whole test sets that they were made for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steadyspike.commands.common import run_or_name
from steadyspike.commands.shared.deployed import folded
from steadyspike.train.files.folder import find_packaged
from steadyspike.train.run.loading import load_run
from tests.deploy.c_program import CProgram, compiler, differing, images_of

REAL = os.environ.get("STEADYSPIKE_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_data,
    pytest.mark.skipif(REAL is None, reason="needs real data: set STEADYSPIKE_DATA"),
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler"),
]


@pytest.mark.parametrize("name", ["digits-cnn7", "nmnist-cnn7", "cifar10-resnet19"])
def test_no_spike_of_the_whole_test_set_differs(name, tmp_path):
    """In integers none differs; in float32 at most one in 10,000, by another order of the same sums."""
    if find_packaged(name) is None:
        pytest.skip(f"the zoo has no {name}")
    folder = run_or_name(name)
    network, _ = folded(folder, Path(REAL))
    steps = network.graph.timesteps
    c, real = CProgram(network, tmp_path), CProgram(network, tmp_path, integer=False, name="real")
    axis = 1 if network.graph.input.timed else 0
    wrong = wrong_real = fired = 0
    for part in images_of(load_run(folder, Path(REAL))).split(100, axis):
        differs, spikes, _ = differing(c, part, steps, True)
        wrong, fired = wrong + differs, fired + spikes
        wrong_real += differing(real, part, steps, False)[0]
    assert fired > 0 and wrong == 0
    assert wrong_real <= 1e-4 * fired

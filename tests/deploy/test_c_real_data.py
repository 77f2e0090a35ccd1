"""The C export on real data: all test samples of N-MNIST and CIFAR-10, in networks that are trained for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.deploy.c_program import CProgram, compiler, differing, images_of

REAL = os.environ.get("STEADYSPIKE_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_data,
    pytest.mark.skipif(REAL is None, reason="needs real data: set STEADYSPIKE_DATA"),
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler"),
]


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("proof-nmnist-cnn7", ["schedule.epochs=2"]),
        ("proof-cifar10-cnn7", ["schedule.epochs=1", "data.train_samples=2000"]),
    ],
)
def test_no_spike_of_the_whole_test_set_differs(recipe, settings, tmp_path):
    from steadyspike.commands.shared.deployed import fold_run
    from steadyspike.train.files.folder import new_folder
    from steadyspike.train.recipe import load_recipe
    from steadyspike.train.run.loading import load_run
    from steadyspike.train.run.training import train

    folder = new_folder(tmp_path / "run", recipe)
    train(load_recipe(recipe, settings), folder, data_dir=Path(REAL))
    run = load_run(folder.root, Path(REAL))
    network = fold_run(run, "exact")
    steps = network.graph.timesteps
    c, real = CProgram(network, tmp_path), CProgram(network, tmp_path, integer=False, name="real")
    x = images_of(run)
    axis = 1 if network.graph.input.timed else 0
    wrong = wrong_real = fired = 0
    for part in x.split(500, axis):
        differs, spikes, _ = differing(c, part, steps, True)
        wrong, fired = wrong + differs, fired + spikes
        wrong_real += differing(real, part, steps, False)[0]
    assert fired > 0 and wrong == 0
    assert wrong_real <= 1e-4 * fired

"""Short runs for the trainer's tests."""

import pytest
import torch

from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import train

torch.set_num_threads(1)  # as the processes that these tests start and compare with: bits depend on it
SAME = ("metrics.csv", "layers.csv", "steps.csv", "health.csv", "weights.safetensors")


def trained(folder, settings=(), **options):
    """A run of the tiny recipe; (folder, result)."""
    folder.mkdir(parents=True, exist_ok=True)
    return RunFolder(folder), train(load_recipe("tiny", settings), RunFolder(folder), **options)


def differing(a, b):
    """Names of the files in which two runs differ, byte by byte."""
    return [name for name in SAME if (a.root / name).read_bytes() != (b.root / name).read_bytes()]


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """One finished run, for tests that only look at it."""
    return trained(tmp_path_factory.mktemp("finished"), ["train.log_every=2"])[0]

"""Several processes: equal to one with the same global batch; one that dies ends them all with its message."""

import os
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from steadyspike.train.files.folder import RunError
from steadyspike.train.files.tables import read_table
from steadyspike.train.run.evaluation import evaluate_run
from steadyspike.train.run.processes import supervise
from tests.train.conftest import trained
from tests.train.forked import GROUPS


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Every variant trained by one process and by two; (root of the ones, root of the twos)."""
    root = tmp_path_factory.mktemp("group")
    for variant, settings in GROUPS.items():
        trained(root / "one" / variant, settings)
    command = [sys.executable, "-m", "tests.train.forked", "group", str(root / "two"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "one", root / "two"


def tables(both, variant, name):
    return zip(*(read_table(root / variant / f"{name}.csv") for root in both))


@pytest.mark.parametrize("variant", ["plain", "channels-last"])
def test_two_processes_equal_one_with_the_same_global_batch(both, variant):
    a, b = (load_file(root / variant / "weights.safetensors") for root in both)
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=2e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")
    for left, right in tables(both, variant, "metrics"):
        assert float(right["train_loss"]) == pytest.approx(float(left["train_loss"]), rel=1e-5)
        assert right["validation_accuracy_2"] == left["validation_accuracy_2"]
    for left, right in tables(both, variant, "layers"):
        for column in ("silent", "running_mean", "gradient"):
            if left[column]:
                assert float(right[column]) == pytest.approx(float(left[column]), rel=1e-3), (left, right)


def test_the_first_step_of_two_processes_is_that_of_one_with_everything_at_its_default(both):
    left, right = next(tables(both, "default", "steps"))
    for column in ("loss", "gradient"):
        assert float(right[column]) == pytest.approx(float(left[column]), rel=2e-5)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_one_process_evaluates_what_two_have_trained_and_gets_their_number(both, part):
    assert evaluate_run(both[1] / "plain", part=part).reproduces is True


def processes(*scripts):
    code = "import os; exec(os.environ['SCRIPT'])"
    return [sys.executable, "-c", code], [{**os.environ, "SCRIPT": script} for script in scripts]


def test_a_process_that_dies_ends_all_with_its_message(tmp_path):
    waiting, dying = "import time; time.sleep(60)", "raise RuntimeError('out of luck')"
    start = time.monotonic()
    with pytest.raises(RunError, match=r"process 1 of 2 died \(exit code 1\): RuntimeError: out of luck"):
        supervise(*processes(waiting, dying), tmp_path, grace=0.2)
    assert time.monotonic() - start < 20


def test_a_killed_process_is_named(tmp_path):
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(RunError, match=r"process 0 of 1 died \(killed by signal 9\)"):
        supervise(*processes(killed), tmp_path)


def test_processes_that_end_well_end_the_run(tmp_path):
    supervise(*processes("pass", "pass"), tmp_path)

"""Several processes: equal to one with the same global batch; one that dies ends them all with its message."""

import os
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from steadyspike.train.folder import RunError
from steadyspike.train.launch import supervise
from steadyspike.train.tables import read_table
from tests.train.conftest import trained
from tests.train.forked import GROUP


def test_two_processes_equal_one_with_the_same_global_batch(tmp_path):
    one, _ = trained(tmp_path / "one", GROUP)
    command = [sys.executable, "-m", "tests.train.forked", "group", str(tmp_path / "two"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    a, b = load_file(one.weights), load_file(tmp_path / "two" / "weights.safetensors")
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=2e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")
    rows = [read_table(root / "metrics.csv") for root in (one.root, tmp_path / "two")]
    for left, right in zip(*rows):
        assert float(right["train_loss"]) == pytest.approx(float(left["train_loss"]), rel=1e-5)
        assert right["validation_accuracy_2"] == left["validation_accuracy_2"]
    layers = [read_table(root / "layers.csv") for root in (one.root, tmp_path / "two")]
    for left, right in zip(*layers):
        for column in ("silent", "running_mean", "gradient"):
            if left[column]:
                assert float(right[column]) == pytest.approx(float(left[column]), rel=1e-3), (left, right)


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

"""Several processes: equal to one with the same global batch; one that dies ends them all with its message."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from steadyspike.train.files.tables import read_table
from steadyspike.train.run.evaluation import evaluate_run
from steadyspike.train.state.processes import how_it_died
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


def devices(out, *more, code=0):
    """`steadyspike train --devices 2` on the tiny recipe; what it wrote to the screen."""
    command = [sys.executable, "-m", "steadyspike.cli", "train", "tiny", "--devices", "2", "--out", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_the_command_starts_processes_and_their_first_reports(tmp_path):
    text = devices(tmp_path / "run", "--set", "schedule.epochs=1")
    assert "; 2 x cpu, fp32" in text
    assert text.count("test accuracy after 1..2") == text.count("everything is in") == 1
    assert (tmp_path / "run" / "figure.png").exists(), text
    assert list((tmp_path / "run" / "logs").rglob("stderr.log"))
    again = devices(tmp_path / "run", "--set", "schedule.epochs=1", "--resume")
    assert again.startswith("this run has ended already") and again.count("test accuracy") == 1


def test_a_process_that_dies_ends_all_with_its_message(tmp_path):
    """The folder of checkpoints is a file, so the first process cannot write its first one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("")
    text = devices(tmp_path / "run", code=1)
    assert "error: process 0 of 2 died (exit code 1): error: " in text and text.count("\n") < 12, text


def test_a_killed_process_is_named(tmp_path):
    log = tmp_path / "run_x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("out of luck\n\n")
    assert how_it_died(1, 2, -9, tmp_path).startswith(
        "process 1 of 2 died (killed by signal 9): out of luck; unless it was killed on purpose, memory was probably "
        "full (see "
    )

"""Signals to real processes, wherever they are: one line, the right exit code, and a folder that resumes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.state.session import Observer
from steadyspike.train.state.signals import Signals, Stopped
from tests.train.conftest import differing, trained
from tests.train.staged import CASES, SETTINGS

SAID = {
    "data": "stopped by SIGTERM before the first step; the same command with --resume",
    "set-up": "stopped by SIGINT before the first step; the same command with --resume",
    "first step": "stopped by SIGTERM in epoch 1, after step 1; the same command with --resume",
    "step": "stopped by SIGINT in epoch 2, after step 8; the same command with --resume",
    "evaluation": "stopped by SIGINT in the evaluation after epoch 1; the same command with --resume",
    "last evaluation": "stopped by SIGTERM in the evaluation after epoch 2; the same command with --resume",
    "test": "stopped by SIGTERM in the test evaluation; the same command with --resume",
    "twice": "ended at once by a second ctrl-C; --resume continues from the last checkpoint",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("signals")


QUICK = ("set-up", "evaluation", "test", "twice")
SLOW = (*(case for case in CASES if case not in QUICK), "group")


def play(root, cases):
    command = [sys.executable, "-m", "tests.train.staged", str(root), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def quick(root):
    return play(root, QUICK)


@pytest.fixture(scope="module")
def rest(root):
    return play(root, SLOW)


@pytest.fixture(scope="module")
def straight(root):
    return trained(root / "straight", SETTINGS)[0]


def check(actual, case, straight, root):
    number = CASES[case][2][0]
    assert actual["code"] == 128 + number, actual["said"]
    lines = actual["said"].strip().splitlines()
    assert SAID[case] in lines[-1] and "Traceback" not in actual["said"]
    assert [line for line in lines if "stopped" in line or "ended at once" in line] == lines[-1:]
    assert actual["resumed"] == 0, actual["then"]
    assert differing(RunFolder(root / case), straight) == []
    assert RunFolder(root / case).read_json("result.json")["test"] == straight.read_json("result.json")["test"]


@pytest.mark.parametrize("case", QUICK)
def test_it_says_so_in_one_line_and_resumes_bit_for_bit(quick, straight, root, case):
    check(quick[case], case, straight, root)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW[:-1])
def test_and_everywhere_else(rest, straight, root, case):
    check(rest[case], case, straight, root)


def test_a_resume_after_the_test_evaluation_was_stopped_does_only_that(quick):
    assert quick["test"]["kept"] and not quick["evaluation"]["kept"]
    assert "epoch" not in quick["test"]["then"].split("test accuracy")[0]


def test_a_second_ctrl_c_does_not_wait(quick):
    assert quick["twice"]["seconds"] < 5


@pytest.mark.slow
def test_a_signal_to_one_process_of_two_stops_both_in_an_evaluation(rest, root):
    assert rest["group"] == {"straight": [0, 0], "stopped": [15, 15], "resumed": [0, 0]}
    assert differing(RunFolder(root / "group"), RunFolder(root / "group-straight")) == []


def test_as_a_library_signals_stop_at_once_or_wait_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals, pytest.raises(Stopped) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.number == signal.SIGTERM and signals()
    with Signals() as signals:
        with signals:  # the same once more, as when a command hands it on
            signals.wait("here")
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.number == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped):
            signals.now("there")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_checkpoint_of_a_stopped_evaluation_is_at_the_end_of_its_epoch(tmp_path):
    class Stopping:
        def __call__(self, session, notes):
            original = session.task.eval_step
            session.task.eval_step = lambda batch: (original(batch), os.kill(os.getpid(), signal.SIGTERM))[0]
            return Observer()

    folder, result = trained(tmp_path, SETTINGS, display=Stopping())
    assert result == {"status": "interrupted", "signal": 15, "where": "in the evaluation after epoch 1"}
    state = read_checkpoint(folder.last)
    assert (state["epoch"], state["batch"], state["step"]) == (0, 5, 5)


def test_a_signal_while_the_figure_is_drawn_says_that_the_run_ended_and_a_resume_draws_it(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from steadyspike.cli import app
    from steadyspike.report import run_figure

    folder = tmp_path / "run"
    command = ["train", "tiny", "--set", "schedule.epochs=1", "--out", str(folder)]
    with monkeypatch.context() as patch:
        patch.setattr(run_figure, "draw_runs", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 143 and "stopped by SIGTERM after the run ended" in stopped.output, stopped.output
    resumed = CliRunner().invoke(app, [*command, "--resume"])
    assert resumed.exit_code == 0 and "this run has ended already" in resumed.output, resumed.output
    assert (folder / "figure.png").exists()

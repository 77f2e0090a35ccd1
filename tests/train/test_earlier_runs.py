"""Runs of the version that trained with Lightning (commit 237f876) are read, reported, folded and continued.

runs/lightning.tar.xz holds one that has ended, and the same one stopped after step 7 of 10.
"""

import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.tables import read_table
from steadyspike.train.run.evaluation import evaluate_run
from steadyspike.train.run.training import train


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(Path(__file__).parent / "runs" / "lightning.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def call(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_evaluates_to_its_number(root):
    evaluation = evaluate_run(root / "ended")
    assert evaluation.scores.accuracy == evaluation.logged["accuracy"]
    assert evaluation.scores.loss == pytest.approx(evaluation.logged["loss"], rel=1e-5)


def test_commands_read_it(root):
    assert "finished" in call("show", root / "ended") and "stopped" in call("runs", root)
    call("report", root / "ended", "--no-data")
    call("fold", root / "ended", "--samples", "16")
    assert (root / "ended" / "report.html").exists() and list((root / "ended").glob("folded*"))


def test_it_goes_on_from_a_checkpoint_inside_an_epoch(root):
    """What was trained does not change, byte for byte; the rest is the run that was not stopped, to rounding."""
    stopped, ended = RunFolder(root / "stopped"), RunFolder(root / "ended")
    before = (stopped.root / "steps.csv").read_bytes()
    result = train(stopped.read_recipe(), stopped, resume=True)
    assert result["status"] == "finished" and (stopped.root / "steps.csv").read_bytes().startswith(before)
    steps, whole = read_table(stopped.root / "steps.csv"), read_table(ended.root / "steps.csv")
    assert before.count(b"\n") == 8 and len(steps) == len(whole) == 10
    for here, there in zip(steps, whole):
        assert float(here["loss"]) == pytest.approx(float(there["loss"]), rel=1e-3)
    assert result["best"]["epoch"] == ended.read_json("result.json")["best"]["epoch"]

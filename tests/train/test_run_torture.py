"""The short form of `make torture`: a few tries of what is cheap, and proof that the program can fail."""

import shutil
import sys

import pytest
from torture import __main__ as program
from torture import run_files
from torture.tally import Tally, table


@pytest.mark.parametrize("name", run_files.FILES)
def test_no_corruption_of_a_run_file_is_accepted(tmp_path, finished, name):
    shutil.copytree(finished.root, tmp_path / "run")
    tally = run_files.corrupt(tmp_path / "run", name, 100, seed=0)
    assert tally.tries == 100 and tally.failures == []


def test_no_corruption_of_a_clip_cache_is_accepted(tmp_path, monkeypatch):
    assert run_files.corrupt_clips(tmp_path / "whole", 100, seed=0).failures == []
    monkeypatch.setattr("steadyspike.data.clip_cache.file_sha256", lambda path: "equal")
    believed = run_files.corrupt_clips(tmp_path / "believed", 100, seed=0).failures
    assert any("accepted with other content" in failure for failure in believed)


def test_a_file_that_is_believed_is_a_failure(tmp_path, finished, monkeypatch):
    """The fault test can fail: a reader that does not look at checksums is found out."""
    shutil.copytree(finished.root, tmp_path / "run")
    monkeypatch.setattr("steadyspike.train.files.folder.check_seal", lambda content: None)
    tally = run_files.corrupt(tmp_path / "run", "result.json", 100, seed=0)
    assert any("accepted with other content" in failure for failure in tally.failures)


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["kill 3: metrics.csv differs"], 1)])
def test_the_program_prints_a_table_and_fails_on_any_failure(monkeypatch, capsys, failures, code):
    monkeypatch.setattr(program, "runner", lambda name: lambda scale, seed: [Tally(name, 12, failures=failures)])
    monkeypatch.setattr(sys, "argv", ["torture", "kills", "--seed", "5"])
    assert program.main() == code
    printed = capsys.readouterr().out
    assert "seed 5" in printed and table([Tally("kills", 12, failures=failures)]) in printed
    assert all(failure in printed for failure in failures)


def test_kinds_are_modules_with_a_torture():
    for name in program.KINDS:
        assert callable(program.runner(name))

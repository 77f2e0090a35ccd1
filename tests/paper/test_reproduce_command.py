"""`steadyspike reproduce` stopped by a signal and called again, and `--record` up to the list of recipes."""

import io
import os
import shutil
import signal

import pytest
from rich.console import Console
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.paper import progress
from steadyspike.paper.registry import EXPERIMENTS
from steadyspike.paper.work.accuracy_table import accuracy_table
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import Page
from steadyspike.paper.work.planned_run import Run
from steadyspike.paper.work.work import Case
from steadyspike.results import measured
from steadyspike.train.recipe import find_recipe

CASES = [Case("tiny", "tiny")]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def mine(monkeypatch):
    """An experiment of one short recipe, run unchanged."""

    def page(work):
        return Page("Mine", [accuracy_table(work, "mine", CASES, beside=False)])

    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("mine", "own", "mine", page, lambda scale: CASES))
    return ("reproduce", "mine", "--scale", "paper", "--seeds", 2)


def test_an_interrupted_list_shows_what_is_there_and_goes_on(mine, tmp_path, monkeypatch):
    after_step = progress.Watch.after_step

    def interrupt(self):
        after_step(self)
        if self.run.seed == 1 and self.session.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(progress.Watch, "after_step", interrupt)
        first = call(*mine, "--out", tmp_path)
    assert first.exit_code == 128 + signal.SIGINT, first.output
    assert "2 runs to train" in first.output and "[2/2]" not in first.output
    assert "the same command continues from here" in first.output and "(1 seed)" in first.output
    assert "(1 seed)" in (tmp_path / "mine-paper" / "page.md").read_text()
    steps = []

    def count(self):
        after_step(self)
        steps.append((self.run.seed, self.session.steps))

    monkeypatch.setattr(progress.Watch, "after_step", count)
    second = call(*mine, "--out", tmp_path)
    assert second.exit_code == 0 and "1 run to train, 1 kept from before" in second.output, second.output
    assert "(2 seeds)" in second.output
    assert {seed for seed, _ in steps} == {1} and min(step for _, step in steps) in (3, 4)


def test_recorded_numbers_stand_in_the_list_of_recipes(mine, tmp_path, monkeypatch):
    results = shutil.copytree(measured.results_root(), tmp_path / "results")
    monkeypatch.setattr(measured, "results_root", lambda: results)
    shown = call(*mine, "--out", tmp_path / "out", "--record")
    assert shown.exit_code == 0 and shown.output.count("\nrecorded ") == 2, shown.output
    entries = measured.recorded(find_recipe("tiny"))
    assert [entry.seed for entry in entries] == [0, 1] and all(entry.commit for entry in entries)
    row = next(line for line in call("recipes", "tiny").output.splitlines() if line.startswith("tiny "))
    assert "(2)" in row and "±" in row, row
    assert call("recipes", "--show", "tiny").output.count("# measured: ") == 2
    again = call(*mine, "--out", tmp_path / "out", "--record")
    assert again.exit_code == 0 and again.output.count("is in recipes.json already") == 2
    small = call("reproduce", "two-steps", "--show", "--out", tmp_path / "none", "--record")
    assert small.exit_code == 0 and "nothing was recorded: mini runs" in small.output


def test_the_time_left_counts_only_what_this_call_did(monkeypatch):
    """A run that was nearly done before made the rest look short."""
    runs = [Run("tiny"), Run("tiny", seed=1)]
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    screen = progress.Screen(Console(file=io.StringIO()), runs, 0)
    screen.start(runs[0])
    screen.resume(runs[0], 0.75)
    assert screen.clock.left() == ""
    now[0] = 10.0
    screen.move(runs[0], 1.0)
    assert screen.clock.left() == "40 s left"  # a quarter of a run took 10 s


def test_a_damaged_run_is_named_and_not_called_not_run(mine, tmp_path):
    assert call(*mine, "--out", tmp_path).exit_code == 0
    folder = next((tmp_path / "runs").glob("*seed1*"))
    weights = folder / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    shown = call(*mine, "--out", tmp_path, "--show")
    assert shown.exit_code == 0 and "(1 seed)" in shown.output
    assert "or damaged: tiny, seed 1" in shown.output


def test_a_run_that_is_damaged_beyond_repair_does_not_cost_the_table(mine, tmp_path):
    first = call(*mine, "--out", tmp_path)
    assert first.exit_code == 0
    for round_, files in enumerate((("last.ckpt", "last.previous.ckpt"), ())):
        folder = next((tmp_path / "runs").glob("*seed0*"))
        for path in (folder / "weights.safetensors", *(folder / "checkpoints" / name for name in files)):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        if not files:  # the second time they are gone
            shutil.rmtree(folder / "checkpoints")
        shutil.rmtree(next((tmp_path / "runs").glob("*seed1*")))
        again = call(*mine, "--out", tmp_path)
        assert again.exit_code == 0 and "[2/2]" in again.output and "(2 seeds)" in again.output, again.output
        aside = tmp_path / "damaged" / (folder.name + ("-2" if round_ else ""))
        assert f"can be deleted: {aside}" in again.output and (aside / "weights.safetensors").exists()
        assert first.output.split("Mine")[1] == again.output.split("Mine")[1]


def test_a_checkpoint_of_another_run_is_no_damage(mine, tmp_path):
    """For example with another --data-dir: then the question is wrong, and the run must stay where it is."""
    assert call(*mine, "--out", tmp_path).exit_code == 0
    one, two = (next((tmp_path / "runs").glob(f"*seed{seed}*")) for seed in (0, 1))
    for name in ("last.ckpt", "last.previous.ckpt"):
        shutil.copy(two / "checkpoints" / name, one / "checkpoints" / name)
    (one / "weights.safetensors").write_bytes(b"")
    again = call(*mine, "--out", tmp_path)
    assert again.exit_code == 1 and "belongs to another run" in again.output and one.exists(), again.output


def test_each_data_set_has_pages_of_its_own(tmp_path):
    for data in ((), ("--data", "cifar10")):
        assert call("reproduce", "two-steps", *data, "--out", tmp_path, "--show").exit_code == 0
    assert {folder.name for folder in tmp_path.iterdir()} == {"two-steps-mini", "two-steps-mini-cifar10"}


def test_data_sets_are_known_by_all_their_names_and_others_refused(tmp_path):
    """By its other name N-MNIST was taken for still images, and a name that does not exist had a page."""
    done = call("reproduce", "two-steps", "--data", "N-MNIST", "--out", tmp_path, "--show")
    assert done.exit_code == 0 and [folder.name for folder in tmp_path.iterdir()] == ["two-steps-mini-nmnist"]
    for show in ((), ("--show",)):
        done = call("reproduce", "two-steps", "--data", "n-minst", "--out", tmp_path / "none", *show)
        assert done.exit_code == 1 and "--data: there is no data set 'n-minst'; valid are " in done.output
    assert not (tmp_path / "none").exists()

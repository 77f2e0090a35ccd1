"""A run that is stopped at any moment and continued ends bit for bit like one that was not."""

import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from lightning.pytorch import Callback

from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import load_recipe
from tests.train.conftest import differing, trained
from tests.train.forked import KILLED

RANDOM = ["model.options.dropout=0.3", "train.log_every=2", "neuron.threshold=0.3"]


class Crash(Exception):
    pass


class Crashing(Callback):
    """Raises in one hook once so many steps are made."""

    def __init__(self, hook, step):
        self.step = step
        setattr(self, hook, self.fail)

    def fail(self, trainer, *_):
        if trainer.global_step >= self.step:
            raise Crash


def crashing(hook, step):
    return lambda session, refused: Crashing(hook, step)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("straight"), [*RANDOM, "train.save_every=2"])[0]


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_end", 1),  # before the first checkpoint inside an epoch
        ("on_train_batch_end", 4),
        ("on_validation_end", 5),  # between the last step of an epoch and its evaluation's record
        ("on_train_epoch_start", 10),
        ("on_train_batch_end", 13),
    ],
)
def test_a_crash_changes_nothing(tmp_path, straight, hook, step):
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing(hook, step))
    folder, result = trained(tmp_path, settings, resume=True)
    assert result["status"] == "finished"
    assert differing(folder, straight) == []


@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 8), (signal.SIGINT, 5)])
def test_a_signal_stops_with_a_checkpoint_and_the_rest_is_the_same(tmp_path, straight, number, step):
    class Signalling(Crashing):
        def fail(self, trainer, *_):
            if trainer.global_step == self.step:
                os.kill(os.getpid(), number)

    settings = [*RANDOM, "train.save_every=2"]
    before = signal.getsignal(number)
    _, result = trained(tmp_path, settings, display=lambda s, r: Signalling("on_train_batch_start", step))
    assert result["status"] == "interrupted" and signal.getsignal(number) is before
    assert read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["step"] == step + 1
    folder, result = trained(tmp_path, settings, resume=True)
    assert result["status"] == "finished" and differing(folder, straight) == []


def test_the_runs_that_are_compared_do_train(straight):
    losses = [line.split(",")[3] for line in (straight.root / "steps.csv").read_text().splitlines()[1:]]
    assert len(losses) == 7 and len(set(losses)) == 7


def test_a_process_killed_several_times_ends_the_same(tmp_path):
    """SIGKILL to a real process, with weight averaging, accumulation and dropout, at moments the machine decides."""
    straight, _ = trained(tmp_path / "straight", KILLED)
    command = [sys.executable, "-m", "tests.train.forked", "kill", str(tmp_path / "killed"), "3", "9", "20"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    killed = type(straight)(tmp_path / "killed")
    assert differing(killed, straight) == []


def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(tmp_path, straight):
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("on_train_batch_end", 13))
    last = tmp_path / "checkpoints" / "last.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    seen = []
    folder, _ = trained(tmp_path, settings, resume=True, display=lambda s, refused: seen.extend(refused) or Callback())
    assert len(seen) == 1 and str(last) in seen[0] and "truncated" in seen[0]
    assert differing(folder, straight) == []


def test_a_disk_that_fills_up_loses_nothing(tmp_path, straight):
    """The kernel refuses files above a size: the run says so, and goes on from the old checkpoint later."""
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("on_train_batch_end", 6))
    before = (tmp_path / "checkpoints" / "last.ckpt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"last\.ckpt could not be written: .*; the one before it is intact"):
            trained(tmp_path, settings, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "checkpoints" / "last.ckpt").read_bytes() == before
    folder, _ = trained(tmp_path, settings, resume=True)
    assert differing(folder, straight) == []


def test_a_run_killed_after_its_last_epoch_only_concludes(tmp_path, straight):
    shutil.copytree(straight.root, tmp_path / "run")
    for name in ("weights.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    folder, result = trained(tmp_path / "run", [*RANDOM, "train.save_every=2"], resume=True)
    assert differing(folder, straight) == []
    assert result["test"] == straight.read_json("result.json")["test"]


def test_another_recipes_checkpoint_is_refused(tmp_path):
    with pytest.raises(Crash):
        trained(tmp_path, display=crashing("on_train_batch_end", 1))
    with pytest.raises(CheckpointError, match="belongs to another run: its recipe is"):
        trained(tmp_path, ["optimizer.lr=0.3"], resume=True)


def test_where_it_runs_is_not_part_of_what_it_is():
    from steadyspike.train.files.same_recipe import difference, fingerprint

    a, b = load_recipe("tiny"), load_recipe("tiny", ["train.save_every=7", "data.workers=2"])
    assert fingerprint(a) == fingerprint(b) and difference(a, b) is None
    assert difference(load_recipe("tiny", ["data.timesteps=3"]), a) == "data.timesteps is 3, was 2"


@pytest.mark.parametrize("lost", ["last.ckpt", "checkpoints"])
def test_a_run_whose_checkpoints_were_deleted_is_not_started_over(tmp_path, straight, lost):
    shutil.copytree(straight.root, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for path in (tmp_path / "run" / "checkpoints").glob("last*" if lost == "last.ckpt" else "*"):
        path.unlink()
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    with pytest.raises(RunError, match=r"holds results but no checkpoint: last\.ckpt is gone.* delete the folder"):
        trained(tmp_path / "run", [*RANDOM, "train.save_every=2"], resume=True)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_a_run_that_never_came_to_a_checkpoint_starts_from_the_beginning_and_says_so(tmp_path, straight):
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("on_fit_start", 0))
    assert (tmp_path / "metrics.csv").exists() and not (tmp_path / "checkpoints").exists()
    said = []
    folder, _ = trained(tmp_path, settings, resume=True, display=lambda s, notes: said.extend(notes) or Callback())
    assert said == [f"there is no checkpoint in {tmp_path} yet: starting from the beginning"]
    assert differing(folder, straight) == []


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_without_the_best_checkpoint_no_other_weights_pass_for_it(tmp_path, straight, damage):
    """As after a kill in the final test evaluation, with best.ckpt lost."""
    copy = tmp_path / "run"
    shutil.copytree(straight.root, copy)
    for name in ("result.json", "weights.safetensors"):
        (copy / name).unlink()
    best = copy / "checkpoints" / "best.ckpt"
    if damage == "missing":
        best.unlink()
    else:
        best.write_bytes(best.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"best epoch .* cannot be tested"):
        trained(copy, [*RANDOM, "train.save_every=2"], resume=True)
    assert not (copy / "weights.safetensors").exists()


def test_damaged_files_of_a_run_are_named(tmp_path, straight):
    from steadyspike.train.run.evaluation import evaluate_run

    copy = tmp_path / "run"
    shutil.copytree(straight.root, copy)
    weights = copy / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(RunError, match=r"weights\.safetensors is damaged"):
        evaluate_run(copy)
    (copy / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        RunFolder(copy).read_json("result.json")

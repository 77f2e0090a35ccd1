"""A run that is stopped at any moment and continued ends bit for bit like one that was not."""

import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint, write_state
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.state.session import Observer
from tests.train.conftest import differing, trained
from tests.train.forked import KILLED

RANDOM = ["model.options.dropout=0.3", "train.log_every=2", "neuron.threshold=0.3"]


class Crash(Exception):
    pass


class Crashing(Observer):
    """Raises in one hook once so many steps are made; "forward" and "evaluation" are places of the task."""

    def __init__(self, session, hook, step):
        self.session, self.step = session, step
        if hook in ("forward", "evaluation"):
            name = "forward" if hook == "forward" else "eval_step"
            original = getattr(session.task, name)
            setattr(session.task, name, lambda batch: (self.fail(), original(batch))[1])
        else:
            setattr(self, hook, self.fail)

    def fail(self):
        if self.session.steps >= self.step:
            raise Crash


def crashing(hook, step):
    return lambda session, refused: Crashing(session, hook, step)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("straight"), [*RANDOM, "train.save_every=2"])[0]


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("after_step", 1),  # before the first checkpoint inside an epoch
        ("after_step", 4),
        ("evaluation", 5),  # between the last step of an epoch and its evaluation's record
        ("after_epoch", 5),  # between the record and the checkpoint
        ("forward", 10),
        ("after_step", 13),
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
        def fail(self):
            if self.session.steps == self.step:
                os.kill(os.getpid(), number)

    settings = [*RANDOM, "train.save_every=2"]
    before = signal.getsignal(number)
    _, result = trained(tmp_path, settings, display=lambda s, r: Signalling(s, "forward", step))
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
        trained(tmp_path, settings, display=crashing("after_step", 13))
    last = tmp_path / "checkpoints" / "last.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    seen = []
    folder, _ = trained(tmp_path, settings, resume=True, display=lambda s, refused: seen.extend(refused) or Observer())
    assert len(seen) == 1 and str(last) in seen[0] and "truncated" in seen[0]
    assert differing(folder, straight) == []


def test_a_disk_that_fills_up_loses_nothing(tmp_path, straight):
    """The kernel refuses files above a size: the run reports it, and goes on from the old checkpoint later."""
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("after_step", 6))
    before = (tmp_path / "checkpoints" / "last.ckpt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"last\.ckpt could not be written: .*; the previous file is intact"):
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
        trained(tmp_path, display=crashing("after_step", 1))
    with pytest.raises(CheckpointError, match="belongs to another run: its recipe is"):
        trained(tmp_path, ["optimizer.lr=0.3"], resume=True)


def test_where_it_runs_is_not_part_of_what_it_is():
    from steadyspike.train.recipe.identity import difference, fingerprint

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
    with pytest.raises(RunError, match=r"contains results but no checkpoint: last\.ckpt is missing.*delete the folder"):
        trained(tmp_path / "run", [*RANDOM, "train.save_every=2"], resume=True)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_a_run_that_never_came_to_a_checkpoint_starts_from_the_beginning_and_says_so(tmp_path, straight):
    settings = [*RANDOM, "train.save_every=2"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("start", 0))
    assert (tmp_path / "metrics.csv").exists() and not (tmp_path / "checkpoints").exists()
    printed = []
    folder, _ = trained(tmp_path, settings, resume=True, display=lambda s, notes: printed.extend(notes) or Observer())
    assert printed == [f"there is no checkpoint in {tmp_path} yet: starting from the beginning"]
    assert differing(folder, straight) == []


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_without_the_best_checkpoint_no_other_weights_pass_for_it(tmp_path, straight, damage):
    """As after a kill in the final test evaluation, with best.ckpt lost."""
    copy = tmp_path / "run"
    shutil.copytree(straight.root, copy)
    for name in ("result.json", "weights.safetensors"):
        (copy / name).unlink()
    change(copy / "checkpoints" / "last.ckpt", lambda state: state.update(best=[1, 50.0, 1.0]))
    for best in (copy / "checkpoints").glob("best*"):
        best.unlink() if damage == "missing" else best.write_bytes(best.read_bytes()[:1000])
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


def settle(tmp_path, straight, *lost):
    """A copy of a finished run as it was before its end, and its settings."""
    copy = tmp_path / "run"
    shutil.copytree(straight.root, copy)
    for name in ("result.json", "weights.safetensors", *lost):
        (copy / name).unlink()
    return copy, [*RANDOM, "train.save_every=2"]


def change(path, edit):
    """Changes the content of a checkpoint; the file is whole afterwards, with a checksum of its own."""
    state = read_checkpoint(path)
    edit(state)
    with open(path, "wb") as file:
        write_state(state, file)


EDITS = {
    "no tables": lambda state: state.pop("files"),
    "a table less": lambda state: state["files"].pop("health"),
    "no length": lambda state: state["files"].update(steps={}),
    "another shape": lambda state: state["state_dict"].update({next(iter(state["state_dict"])): torch.zeros(3)}),
    "a weight less": lambda state: state["state_dict"].popitem(),
    "another type": lambda state: state.update(step="7"),
    "no generator": lambda state: state["ranks"][0]["rng"].pop("torch"),
    "one process more": lambda state: state["ranks"].append(state["ranks"][0]),
    "another optimizer": lambda state: state["optimizer"]["param_groups"][0].pop("momentum"),
    "momentum of another shape": lambda state: state["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(9)),
    "another loader": lambda state: state["loader"].update(epoch=-3),
    "another schedule": lambda state: state.update(schedule={}),
    "best of the future": lambda state: state.update(best=[99, 100.0]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_whole_checkpoint_that_does_not_fit_falls_back_to_the_one_before(tmp_path, straight, edit):
    copy, settings = settle(tmp_path, straight)
    change(copy / "checkpoints" / "last.ckpt", EDITS[edit])
    seen = []
    folder, result = trained(copy, settings, resume=True, display=lambda s, notes: seen.extend(notes) or Observer())
    assert len(seen) == 1 and "last.ckpt cannot be used: " in seen[0] and seen[0].endswith("from the previous one")
    assert result["status"] == "finished" and differing(folder, straight) == []


def test_a_good_checkpoint_is_not_lost_to_the_damaged_one_when_the_next_is_written(tmp_path, straight):
    """The one before takes the name of the damaged one at once; otherwise the next save would replace it."""
    copy, settings = settle(tmp_path, straight)
    last = copy / "checkpoints" / "last.ckpt"
    last.write_bytes(b"damaged")
    with pytest.raises(Crash):
        trained(copy, settings, resume=True, display=crashing("start", 0))
    assert read_checkpoint(last)["step"] == 14
    assert differing(trained(copy, settings, resume=True)[0], straight) == []


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_best_checkpoint_is_found_before_training(tmp_path, damage):
    settings = ["train.seed=3", "schedule.epochs=3"]
    with pytest.raises(Crash):
        trained(tmp_path, settings, display=crashing("after_step", 11))
    change(tmp_path / "checkpoints" / "last.ckpt", lambda state: state.update(best=[1, 50.0]))
    for path in (tmp_path / "checkpoints").glob("best*"):
        content = path.read_bytes()
        path.unlink()  # it may be another name of last.ckpt
        if damage == "truncated":
            path.write_bytes(content[:1000])
    with pytest.raises(CheckpointError, match=r"best\.ckpt .*best epoch \(1\) cannot be tested"):
        trained(tmp_path, settings, resume=True, display=crashing("start", 0))


def test_a_shortened_table_uses_an_older_checkpoint_that_fits(tmp_path, straight):
    copy, settings = settle(tmp_path, straight)
    table = copy / "metrics.csv"
    table.write_bytes(table.read_bytes()[:-4])  # the last row was written between the two checkpoints
    seen = []
    folder, _ = trained(copy, settings, resume=True, display=lambda s, notes: seen.extend(notes) or Observer())
    assert "metrics.csv has" in seen[0] and differing(folder, straight) == []
    table.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"metrics\.csv has 0 bytes.*restore the damaged file from a copy"):
        trained(copy, settings, resume=True)


@pytest.mark.parametrize("name", ["run.json", "recipe.toml"])
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_resume_writes_lost_files_again(tmp_path, straight, name, damage):
    copy, settings = settle(tmp_path, straight)
    path = copy / name
    before = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(before.replace(b"4", b"5", 1))
    folder, _ = trained(copy, settings, resume=True)
    assert differing(folder, straight) == []
    assert RunFolder(copy).read_recipe() == straight.read_recipe()
    assert RunFolder(copy).read_json("run.json")["data"] == straight.read_json("run.json")["data"]


def test_an_ended_run_with_a_damaged_file_is_not_called_ended(tmp_path, straight):
    from steadyspike.train.files.weights import intact_result

    copy = RunFolder(tmp_path / "run")
    shutil.copytree(straight.root, copy.root)
    assert intact_result(copy) == straight.read_json("result.json")
    for name in ("run.json", "result.json", "weights.safetensors", "metrics.csv", "health.csv"):
        content = (copy.root / name).read_bytes()
        (copy.root / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert intact_result(copy) is None
        (copy.root / name).write_bytes(content)


def test_the_best_checkpoint_before_the_last_survives_in_a_copied_folder(tmp_path):
    """A copy has no hard links: last.ckpt and best.ckpt are two equal files."""
    settings = ["train.save_every=2"]  # the checkpoint before the last is inside the last epoch
    folder, result = trained(tmp_path / "run", settings)
    assert result["best"]["epoch"] == 3  # the case that this test needs: the last epoch is the best
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(folder.root, copy.root)
    assert not copy.best.samefile(copy.last)
    (copy.root / "result.json").unlink()
    trained(copy.root, settings, resume=True)
    copy.last.write_bytes(copy.last.read_bytes()[:-9])
    (copy.root / "result.json").unlink()
    assert trained(copy.root, settings, resume=True)[1]["best"]["epoch"] == 3
    assert not differing(folder, copy)

"""The weights of a run are those that its result is of: a whole file of another run is not believed."""

import shutil

import pytest

from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import NOTED, NOTED_RECIPE, intact_result
from steadyspike.train.run.evaluation import evaluate_run
from steadyspike.train.run.loading import load_run
from steadyspike.train.run.training import train
from tests.train.conftest import trained


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of another seed: the same network, the same data, other weights."""
    return trained(tmp_path_factory.mktemp("other"), ["train.log_every=2", "train.seed=1"])[0]


@pytest.fixture
def exchanged(finished: RunFolder, other: RunFolder, tmp_path) -> RunFolder:
    copy = RunFolder(tmp_path / "run")
    shutil.copytree(finished.root, copy.root)
    shutil.copyfile(other.weights, copy.weights)
    return copy


def test_weights_of_another_run_are_refused(exchanged: RunFolder, finished: RunFolder) -> None:
    assert intact_result(finished) is not None and intact_result(exchanged) is None
    for use in (evaluate_run, load_run):
        use(finished.root)
        with pytest.raises(RunError, match=r"weights\.safetensors does not match result\.json.* another run"):
            use(exchanged.root)


def test_resuming_writes_the_run_s_own_again(exchanged: RunFolder, finished: RunFolder) -> None:
    train(exchanged.read_recipe(), exchanged, resume=True)
    assert exchanged.weights.read_bytes() == finished.weights.read_bytes()
    assert intact_result(exchanged) is not None


def test_the_result_of_another_run_is_refused(finished: RunFolder, other: RunFolder, tmp_path) -> None:
    """With all that belongs to it, so that only the recipe is the folder's own."""
    copy = RunFolder(tmp_path / "run")
    shutil.copytree(other.root, copy.root)
    shutil.copyfile(finished.root / "recipe.toml", copy.root / "recipe.toml")
    assert intact_result(other) is not None and intact_result(copy) is None
    for use in (evaluate_run, load_run):
        with pytest.raises(RunError, match=r"recipe\.toml does not match result\.json"):
            use(copy.root)


def test_a_run_that_noted_nothing_is_believed(finished: RunFolder, tmp_path) -> None:
    old = RunFolder(tmp_path / "run")
    shutil.copytree(finished.root, old.root)
    result = old.read_json("result.json")
    assert result.pop(NOTED) and result.pop(NOTED_RECIPE)
    old.write_json("result.json", result)
    assert intact_result(old) == result and load_run(old.root).result == result
    assert evaluate_run(old.root).logged is not None

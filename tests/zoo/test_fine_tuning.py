"""`steadyspike train RECIPE --from NAME`: a run that starts with trained weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import steadyspike as ss
from steadyspike import models
from steadyspike.cli import app
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.weights import split_warning, start_from
from steadyspike.train.recipe import RecipeError

SHORT = ["--set", "schedule.epochs=1", "--set", "data.train_samples=128", "--set", "optimizer.lr=1e-4"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def train(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_two_steps_from_the_zoo_keep_what_was_learned(tmp_path: Path) -> None:
    """Two steps at a small learning rate: near the entry's accuracy with its weights, near chance without."""
    text = train("demo", "--from", "digits-cnn7", "--out", str(tmp_path / "tuned"), *SHORT)
    assert "of digits-cnn7" in text
    train("demo", "--out", str(tmp_path / "scratch"), *SHORT)
    tuned, scratch = (RunFolder(tmp_path / name).read_json("result.json")["test"] for name in ("tuned", "scratch"))
    assert tuned["accuracy"][-1] > 95 and scratch["accuracy"][-1] < 50
    about = RunFolder(tmp_path / "tuned").read_json("run.json")
    assert len(about["start_sha256"]) == 64
    assert RunFolder(tmp_path / "tuned").read_recipe().train.start == "digits-cnn7"
    again = train("demo", "--from", str(tmp_path / "tuned"), "--out", str(tmp_path / "again"), *SHORT)
    assert f"of {tmp_path / 'tuned'}" in again.replace("\n", "")


def test_other_classes_start_anew_and_another_network_is_refused() -> None:
    model = models.create("cnn7", num_classes=3, in_channels=1, image_size=16, width=0.25, dropout=0.0)
    printed = start_from(model, "digits-cnn7")
    assert "new: head" in printed and printed.count("head") == 2, "the weight and bias of the last layer"
    trained = ss.load("digits-cnn7").model.state_dict()
    state = model.state_dict()
    assert all(torch.equal(state[name], trained[name]) for name in state if not name.startswith("head"))
    with pytest.raises(RecipeError, match="is another network"):
        start_from(models.create("resnet19_tiny"), "digits-cnn7")
    with pytest.raises(RecipeError, match=r"ss\.save_pretrained\(ss\.load\('hf://owner/name'\), FOLDER\)"):
        start_from(model, "hf://owner/name")
    with pytest.raises(RecipeError, match="does not exist"):
        start_from(model, __file__)
    with pytest.raises(RecipeError, match=r"digits-cnn8.*neither a folder nor a network"):
        start_from(model, "digits-cnn8")


def test_an_empty_name_is_an_error_and_not_a_start_from_scratch(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "demo", "--from", "", "--out", str(tmp_path / "run"), *SHORT])
    assert done.exit_code == 1 and "--from is empty" in done.output and not (tmp_path / "run").exists()


def test_another_split_warns_that_test_samples_may_have_been_trained_on(tmp_path: Path) -> None:
    text = train(
        "demo", "--from", "digits-cnn7", "--out", str(tmp_path / "run"), *SHORT, "--set", "data.split=random:1"
    )
    assert "another split of digits" in text.replace("\n", " ")
    same, other = (ss.data.load("digits", split=split).split for split in ("random:0", "random:1"))
    assert split_warning("digits-cnn7", same) is None and split_warning("digits-cnn7", other) is not None
    saved = ss.save_pretrained(models.create("cnn7_tiny"), tmp_path / "saved")
    assert split_warning(str(saved), other) is None

"""What a run leaves, what evaluation makes of it, and the options of training."""

import hashlib
import json
import warnings
from importlib.metadata import version

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from steadyspike.data import SplitMismatchWarning
from steadyspike.train.build.data import batch_per_process, first_samples, load_data
from steadyspike.train.files.folder import RunError
from steadyspike.train.files.tables import read_table
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.run.accelerator import accelerator_of
from steadyspike.train.run.evaluation import evaluate_run
from steadyspike.train.state.session import Observer
from tests.train.conftest import differing, trained


def test_a_run_leaves_everything(finished):
    recipe = load_recipe("tiny", ["train.log_every=2"])
    assert finished.read_recipe() == recipe
    about = finished.read_json("run.json")
    assert about["data"]["split"]["fingerprint"] == load_data(recipe.data).split.fingerprint
    assert about["seed"] == 0 and about["environment"]["packages"]["torch"] == version("torch")
    names = {path.name for path in finished.root.rglob("*")}
    assert {"last.ckpt", "best.ckpt", "weights.safetensors", "result.json"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    metrics, layers = read_table(finished.root / "metrics.csv"), read_table(finished.root / "layers.csv")
    assert [row["epoch"] for row in metrics] == ["1", "2", "3"]
    assert float(metrics[0]["lr"]) == 0.05 and metrics[-1]["validation_accuracy_2"]
    assert len(layers) == 3 * 6
    stem = layers[0]
    assert stem["layer"] == "stem.lif" and all(stem[key] for key in stem)
    assert float(stem["rate"]) == pytest.approx((float(stem["rate_1"]) + float(stem["rate_2"])) / 2)
    with safe_open(finished.weights, "pt") as file:
        assert json.loads(file.metadata()["steadyspike"])["split"]["name"] == "random:0+holdout:0.1:0+train:160"


def test_equal_seeds_give_equal_runs_and_others_do_not(finished, tmp_path):
    again, _ = trained(tmp_path / "again", ["train.log_every=2"])
    other, _ = trained(tmp_path / "other", ["train.log_every=2", "train.seed=1", "schedule.epochs=1"])
    assert differing(again, finished) == []
    assert "weights.safetensors" in differing(other, finished)


def test_evaluation_gives_the_logged_number_exactly(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = evaluate_run(finished.root)
    assert actual.reproduces is True
    assert actual.scores.record() == finished.read_json("result.json")["test"]


@pytest.mark.parametrize("settings", [[], ["train.ema=0.5", "loss.name=tet", "data.eval_batch_size=50"]])
def test_evaluation_of_the_validation_part_is_compared_with_the_row_of_its_epoch(tmp_path, settings):
    folder, result = trained(tmp_path, [*settings, "neuron.threshold=0.3", "optimizer.lr=0.1"])
    actual = evaluate_run(folder.root, part="validation")
    assert actual.reproduces is True and actual.scores.accuracy[-1] == result["best"]["accuracy"]
    rows = read_table(folder.root / "metrics.csv")
    row = rows[result["best"]["epoch"] - 1]
    assert actual.logged["loss"] == float(row["validation_loss"]) and len({r["validation_loss"] for r in rows}) == 3
    table = folder.root / "metrics.csv"
    table.write_text(table.read_text().replace(row["validation_loss"], "1.5"))
    with pytest.raises(RunError, match=r"metrics\.csv .*restore it from a copy"):
        evaluate_run(folder.root, part="validation")
    content = table.read_bytes()
    result["tables"]["metrics"] = {"length": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    folder.write_json("result.json", result)
    assert evaluate_run(folder.root, part="validation").reproduces is False
    assert evaluate_run(folder.root, part="train").reproduces is None


def test_another_split_is_warned_about_loudly(finished):
    with pytest.warns(SplitMismatchWarning, match="test samples may have been trained on"):
        actual = evaluate_run(finished.root, split="random:1")
    assert actual.reproduces is None


@pytest.mark.parametrize("validation", ["none", "test"])
def test_selection_follows_the_split(tmp_path, validation):
    folder, result = trained(tmp_path, [f"data.validation={validation}", "schedule.epochs=2"])
    if validation == "none":
        assert result["best"] is None and result["weights"] == "last checkpoint (epoch 2)"
        assert "validation_loss" not in read_table(folder.root / "metrics.csv")[0]
    else:
        assert result["best"]["accuracy"] == pytest.approx(result["test"]["accuracy"][-1])
        assert "test_accuracy_2" in read_table(folder.root / "metrics.csv")[0]


def test_accumulation_equals_the_whole_batch_without_batch_statistics(tmp_path):
    settings = [
        "norm.name=none",
        "neuron.init=zero",
        "neuron.threshold=0.05",
        "data.augment=false",
        "schedule.epochs=1",
    ]
    whole, _ = trained(tmp_path / "whole", settings)
    parts, _ = trained(tmp_path / "parts", [*settings, "train.accumulate=4"])
    a, b = load_file(whole.weights), load_file(parts.weights)
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-4, atol=1e-6)


def test_options_of_training_do_something_and_stay_finite(tmp_path):
    """bf16, clipping, warm-up, averaging, memory saving, AdamW, TET and sparsity at once."""
    settings = [
        "train.precision=bf16", "train.clip=0.05", "schedule.warmup=1", "train.ema=0.5", "train.save_memory=true",
        "optimizer.name=adamw", "optimizer.lr=0.001", "loss.name=tet", "loss.terms.sparsity.weight=0.1",
        "schedule.epochs=2", "train.log_every=1",
    ]  # fmt: skip
    folder, result = trained(tmp_path, settings)
    steps = read_table(folder.root / "steps.csv")
    assert result["status"] == "finished" and len(steps) == 10
    assert float(steps[0]["lr"]) == pytest.approx(1e-5) and float(steps[-1]["lr"]) == pytest.approx(1e-3)
    assert evaluate_run(folder.root).reproduces is True


def test_recomputed_activations_change_no_number(finished, tmp_path):
    folder, _ = trained(tmp_path, ["train.log_every=2", "train.checkpointing=true"])
    for name in ("metrics.csv", "layers.csv", "steps.csv"):
        assert (folder.root / name).read_bytes() == (finished.root / name).read_bytes()
    with pytest.raises(RecipeError, match=r"loss\.terms\.sparsity reads layers .* train\.checkpointing = false"):
        trained(tmp_path / "no", ["loss.terms.sparsity.weight=0.1", "train.checkpointing=true"])


def test_what_this_machine_cannot_do_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RecipeError, match=r"train\.precision = 'fp16' needs a GPU"):
        accelerator_of(load_recipe("tiny", ["train.precision=fp16"]))
    with pytest.raises(RecipeError, match="torch sees no GPU here"):
        accelerator_of(load_recipe("tiny", ["train.accelerator=gpu"]))


def test_a_subset_of_the_training_part_is_balanced_and_part_of_the_split():
    split = load_data(load_recipe("demo").data).split
    small = first_samples(split, 50)
    labels = small.population.labels[small.train]
    assert len(small.train) == 50 and set(small.train) <= set(split.train)
    assert (torch.bincount(torch.from_numpy(labels)) == 5).all()
    assert small.fingerprint != split.fingerprint and (small.test == split.test).all()
    with pytest.raises(RecipeError, match=r"data\.train_samples = 5000 is more than the 1295"):
        first_samples(split, 5000)


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(RecipeError, match=r"must be a multiple of 3 processes x train\.accumulate = 1"):
        batch_per_process(load_recipe("tiny"), 3)


def test_convolutions_run_channels_last_unless_the_recipe_says_otherwise(tmp_path):
    """Through training and evaluation; the files are in the ordinary layout and hold the same numbers."""
    from steadyspike.train.build.task import Task

    seen = []

    def layout(session, refused):
        conv = session.task.model.get_submodule("body.1.conv_norm.conv")
        conv.register_forward_hook(
            lambda m, i, out: seen.append(
                (m.weight.is_contiguous(), out.is_contiguous(memory_format=torch.channels_last))
            )
        )
        return Observer()

    for setting, expected in (("true", (False, True)), ("false", (True, False))):
        # Without a norm: torch's batch norm rounds differently per layout, which flips spikes.
        plain = ["schedule.epochs=1", "norm.name=none", "neuron.threshold=0.05"]
        settings = [*plain, f"train.channels_last={setting}"]
        folder, _ = trained(tmp_path / setting, settings, display=layout)
        assert set(seen) == {expected}
        seen.clear()
        assert evaluate_run(folder.root).reproduces is True
        task = Task.for_data(load_recipe("tiny", settings), load_data(load_recipe("tiny").data))
        assert task.model.get_submodule("body.1.conv_norm.conv").weight.is_contiguous() is (setting == "false")
    a, b = (load_file(tmp_path / setting / "weights.safetensors") for setting in ("true", "false"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)


def test_a_run_remembers_its_data_folder(tmp_path, monkeypatch):
    """evaluate and --resume look where the run found its data, unless another folder is named."""
    from steadyspike.train.run import evaluation, training

    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir(), other.mkdir()
    folder, _ = trained(tmp_path / "run", ["schedule.epochs=1"], data_dir=data)
    assert folder.data_dir() == data
    asked = []
    load, module = evaluation.load_data, training.RunData
    monkeypatch.setattr(
        evaluation, "load_data", lambda table, location, **o: asked.append(location) or load(table, location, **o)
    )
    monkeypatch.setattr(
        training, "RunData", lambda recipe, location, **o: asked.append(location) or module(recipe, location, **o)
    )
    assert evaluate_run(folder.root).reproduces
    evaluate_run(folder.root, other)
    trained(folder.root, ["schedule.epochs=1"], resume=True)
    assert asked == [data, other, data] and folder.data_dir() == data
    trained(folder.root, ["schedule.epochs=1"], resume=True, data_dir=other)
    assert folder.data_dir() == other
    other.rmdir()
    assert folder.data_dir() is None  # then the default is looked at, as for a new run

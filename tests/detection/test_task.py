"""Detection by the trainer: what a run leaves, exact resume, evaluation, groups and warm-up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from steadyspike.data import load
from steadyspike.detection.box_scores import BoxSums
from steadyspike.detection.task import DetectionTask
from steadyspike.results.recording import measurement
from steadyspike.train.build.dry_run import check_recipe, dry_run
from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.build.task import task_for
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.tables import read_table
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.run.evaluation import evaluate_run, part_sums
from steadyspike.train.run.loading import load_run
from steadyspike.train.run.training import train
from steadyspike.train.state.weight_average import WeightAverage
from tests.train.conftest import differing
from tests.train.test_resume import Crash, crashing

SMALL = [
    "data.options.images=20", "data.size=64", "model.width=0.125", "schedule.epochs=2", "schedule.warmup=1",
    "train.eval_every=1", "data.batch_size=4", "train.save_every=2", "detection.pictures=2", "train.log_every=2",
]  # fmt: skip


def trained(folder, settings=(), **options):
    folder.mkdir(parents=True, exist_ok=True)
    recipe = load_recipe("detect-demo", [*SMALL, *settings])
    return RunFolder(folder), train(recipe, RunFolder(folder), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("boxes"))[0]


def test_a_run_leaves_its_map_table_and_pictures(finished):
    result = finished.read_json("result.json")
    assert result["status"] == "finished" and result["test"]["metric"] == "COCO"
    assert {"AP", "AP50", "APs", "AR100", "yolo_AP50", "classes"} <= set(result["test"])
    assert set(result["test"]["classes"]) == {"circle", "square", "triangle"} and result["test"]["samples"] == 4
    assert set(result["best"]) == {"epoch", "fitness"} if result["best"] else True
    rows = read_table(finished.root / "map.csv")
    assert [row["class"] for row in rows] == ["all", "circle", "square", "triangle"] * 2
    metrics = read_table(finished.root / "metrics.csv")
    assert len(metrics) == 2 and all(float(row["train_box"]) > 0 for row in metrics)
    assert metrics[1]["validation_AP50"] == rows[4]["AP50"]
    from PIL import Image

    with Image.open(finished.root / "pictures" / "epoch-002.png") as sheet:
        assert sheet.size[0] >= 128
    entry = measurement(finished, "mine", {})
    assert entry.unit == "COCO mAP@.5" and {"AP", "YOLO AP50", "AP50 of circle"} <= set(entry.numbers)


@pytest.mark.parametrize("part", ["test", "validation"])
def test_evaluation_gives_the_logged_numbers_again(finished, part):
    actual = evaluate_run(finished.root, part=part)
    assert actual.reproduces is True or (part == "validation" and actual.logged is None)


def test_a_changed_number_is_noticed(finished, tmp_path):
    import shutil

    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(finished.root, copy.root)
    result = copy.read_json("result.json")
    result["test"]["AP50"] += 1e-9
    copy.write_json("result.json", result)
    assert evaluate_run(copy.root).reproduces is False


@pytest.mark.parametrize(("hook", "step"), [("after_step", 2), ("evaluation", 3), ("after_step", 5)])
def test_a_crash_changes_nothing(finished, tmp_path, hook, step):
    with pytest.raises(Crash):
        trained(tmp_path / "run", display=crashing(hook, step))
    again, result = trained(tmp_path / "run", resume=True)
    assert result["status"] == "finished" and differing(finished, again) == []
    assert (again.root / "map.csv").read_bytes() == (finished.root / "map.csv").read_bytes()
    assert result["test"] == finished.read_json("result.json")["test"]


def test_workers_change_nothing(finished, tmp_path):
    again, _ = trained(tmp_path / "workers", ["data.workers=1"])
    assert differing(finished, again) in ([], ["weights.safetensors"])  # whose header names the recipe
    assert (again.root / "metrics.csv").read_bytes() == (finished.root / "metrics.csv").read_bytes()


def test_a_run_can_be_loaded(finished):
    run = load_run(finished.root)
    assert "mAP@.5" in repr(run)
    x, targets = next(iter(run.data.eval_loader("test", 2)))
    assert len(run.model(x)) == 2 and len(targets) == 2


def test_the_factor_of_the_loss_does_not_depend_on_accumulation():
    """The loss of a forward is scaled by the batch of the optimizer step; the loop averages over accumulation."""
    bundle = load("shapes", images=20, size=64)
    recipe = load_recipe("detect-demo", [*SMALL, "train.accumulate=2"])
    task = task_for(recipe, bundle)
    assert isinstance(task, DetectionTask)
    x, targets = next(bundle.train_loader(2).batches(0))
    outcome = task.objective(task.model, x, targets)
    assert float(outcome.loss.detach()) == pytest.approx(4 * float(outcome.parts.total.detach()))


def test_images_of_several_processes_count_once():
    bundle = load("shapes", images=20, size=64)
    task = task_for(load_recipe("detect-demo", SMALL), bundle)
    task.model.eval()
    alone, together = part_sums(task, bundle, "test"), BoxSums(bundle.dataset.table, bundle.shape)
    for rank in range(2):
        task.eval_sums = task.new_sums(bundle)
        with torch.inference_mode():
            for batch in bundle.eval_loader("test", 1, rank=rank, world_size=2):
                task.eval_step(batch)
        together.merge(task.eval_sums)
    assert alone.scores().numbers == together.scores().numbers and together.scores().samples == 4


def test_parameters_by_kind_and_their_warm_up():
    recipe = load_recipe("detect-demo", ["optimizer.lr=0.02", "schedule.warmup=2", "schedule.warmup_bias_lr=0.05"])
    model = task_for(load_recipe("detect-demo", SMALL), load("shapes", images=20, size=64)).model
    optimizer = build_optimizer(recipe.optimizer, model)
    kinds = {group["kind"]: group for group in optimizer.param_groups}
    assert list(kinds) == ["weights", "norms", "biases", "neurons"]
    assert [kinds[k]["weight_decay"] > 0 for k in kinds] == [True, False, False, False]
    assert sum(len(g["params"]) for g in kinds.values()) == len(list(model.parameters()))
    schedule = build_schedule(recipe, optimizer, steps_per_epoch=5)
    assert kinds["biases"]["lr"] == pytest.approx(0.05) and kinds["weights"]["lr"] == pytest.approx(0.0002)
    assert kinds["weights"]["momentum"] == pytest.approx(0.8)
    for _ in range(10):
        optimizer.step()
        schedule.step()
    assert kinds["biases"]["lr"] == pytest.approx(0.02) == kinds["neurons"]["lr"]
    assert kinds["weights"]["momentum"] == pytest.approx(0.937)


def test_the_decay_of_the_average_grows():
    model = torch.nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.9, ramp=10)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average.start()
        model.weight.fill_(1.0)
        average.update(1)
    assert float(average.average["weight"]) == pytest.approx(1 - 0.9 * (1 - math.exp(-0.1)))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("detect-demo", ["data.name=digits", "data.size=[32,32]"], "."),
        ("tiny", ["data.name=shapes"], r"data.name = 'shapes' needs a \[detection\] table"),
        ("detect-demo", ["model.name=cnn7", "model.options={}"], "'cnn7' is a network for classification"),
        ("tiny", ["model.name=ems_resnet10_ee", "model.options={}", "detection.box=0.1"], "cannot be|multiples"),
        ("detect-demo", ["loss.name=tet"], r"\[loss\] is for classes"),
        ("detect-demo", ["data.size=50"], "multiples of 32"),
        ("detect-demo", ["optimizer.groups=decay"], "warmup_bias_lr needs optimizer.groups"),
    ],
)
def test_what_does_not_belong_together_is_refused(name, settings, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        check_recipe(load_recipe(name, settings))


def test_the_dry_run_makes_a_step():
    done = dry_run(load_recipe("detect-demo"))
    assert done.parameters > 100_000 and 0 < done.loss < 100


def test_predictions_are_drawn_and_written(finished, tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image
    from typer.testing import CliRunner

    from steadyspike.cli import app

    run = load_run(finished.root)
    folder = tmp_path / "video"
    folder.mkdir()
    for i in range(2):
        run.data.dataset.item.image(i).save(folder / f"{i}.png")
    single = tmp_path / "0.png"
    Image.fromarray(np.zeros((50, 90, 3), np.uint8)).save(single)
    monkeypatch.setattr("steadyspike.data.load", None)  # the data is not needed
    args = [
        "predict",
        str(finished.root),
        str(single),
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--confidence",
        "0.01",
    ]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    actual = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [one["file"] for one in actual["images"]] == ["0.png", "video/0.png", "video/1.png"]
    for one in actual["images"]:
        with Image.open(tmp_path / "out" / one["picture"]) as picture:
            factor = picture.width // one["width"]  # small images are enlarged
            assert picture.size == (factor * one["width"], factor * one["height"])
        for box in one["boxes"]:
            left, top, width, height = box["bbox"]
            assert box["category"] in ("circle", "square", "triangle") and 0.01 < box["score"] <= 1
            assert (
                left >= 0 and top >= 0 and left + width <= one["width"] + 0.01 and top + height <= one["height"] + 0.01
            )
    monkeypatch.chdir(folder)  # pictures never replace the images they are of, nor leave the folder
    original = [path.read_bytes() for path in sorted(folder.glob("*.png"))]
    for given, picture in ((".", "video/0.png"), ("0.png", "0-2.png"), ("..", tmp_path.name + "/0.png")):
        assert CliRunner().invoke(app, ["predict", str(finished.root), given, "--out", "."]).exit_code == 0
        assert json.loads(Path("predictions.json").read_text())["images"][0]["picture"] == picture
        assert [(folder / f"{i}.png").read_bytes() for i in range(2)] == original and Path(picture).is_file()
    refused = CliRunner().invoke(app, ["predict", str(finished.root), str(tmp_path / "none.png")])
    assert refused.exit_code == 1 and "is not a file" in refused.output


def test_commands_that_are_for_classes_say_so(finished, tmp_path):
    from typer.testing import CliRunner

    from steadyspike.cli import app

    for args, message in (
        (["fold", str(finished.root)], "cannot be folded"),
        (["evaluate", str(finished.root), "--early-exit"], "--early-exit is for classes"),
    ):
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 1 and message in " ".join(done.output.split()), done.output
    sheet = tmp_path / "shapes.png"
    done = CliRunner().invoke(app, ["data", "show", "shapes", "--out", str(sheet)])
    assert done.exit_code == 0 and sheet.stat().st_size > 1000


def test_an_own_network_without_a_head_for_boxes_is_refused_in_words():
    from steadyspike.detection.task import _scales

    with pytest.raises(RecipeError, match=r"Linear cannot be trained for detection: .*detect\.Detect, not NoneType"):
        _scales(torch.nn.Linear(1, 1))


def test_events_are_pictures_frame_by_frame(tmp_path):
    from steadyspike.detection.predict_files import pictures

    path = tmp_path / "one.bin"
    events = [(5 + i, 9, i % 2, 1000 * i) for i in range(20)]
    path.write_bytes(b"".join(bytes([x, y, (p << 7) | (t >> 16), (t >> 8) & 255, t & 255]) for x, y, p, t in events))
    frames = list(pictures([path]))
    assert len(frames) == 10 and frames[0][0] == "one/frame-001.png" and frames[0][1].size == (34, 34)


def test_a_recipe_of_boxes_is_recorded_in_its_run(finished):
    text = (finished.root / "recipe.toml").read_text()
    assert "[detection]" in text and "scale_gains = false" in text
    assert json.loads((finished.root / "run.json").read_text())["data"]["box_augment"]["mosaic"] == 0.5

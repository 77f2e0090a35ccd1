"""A kind of run that this library does not have is one place: a regression is registered, trained and evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from steadyspike import models
from steadyspike.cli import app
from steadyspike.data import dataset_catalogue
from steadyspike.models import model_registry
from steadyspike.results.recording import measurement
from steadyspike.train import RunFolder, evaluate_run, load_recipe, train
from steadyspike.train.build.dry_run import check_recipe, dry_run
from steadyspike.train.build.task import Task
from steadyspike.train.recipe import RecipeError, kinds
from steadyspike.train.run.loading import load_run


class R2(NamedTuple):
    """How much of the variance of a digit's value the network explains."""

    loss: float
    r2: float
    samples: int

    @property
    def selects(self) -> float:
        return self.r2

    def cells(self, part: str) -> dict[str, float]:
        return {f"{part}_loss": self.loss, f"{part}_r2": self.r2}

    def line(self) -> str:
        return f"{self.r2:6.3f}"

    def record(self) -> dict[str, Any]:
        return {"r2": self.r2, "loss": self.loss, "samples": self.samples}


class Sums:
    """[samples, squared error, sum, sum of squares] of targets."""

    def __init__(self) -> None:
        self.values = torch.zeros(4, dtype=torch.float64)

    def add(self, value: Tensor, target: Tensor) -> None:
        y, error = target.double(), (value.detach().double() - target).square().sum()
        self.values = self.values + torch.stack([torch.tensor(float(len(y))), error, y.sum(), y.square().sum()])

    def merge(self, other: Sums) -> None:
        self.values = self.values + other.values

    def scores(self, everyone: bool = True) -> R2:
        n, error, total, squares = self.values.tolist()
        return R2(error / n, 1 - error / max(squares - total**2 / n, 1e-9), int(n))

    def reset(self) -> None:
        self.values = torch.zeros(4, dtype=torch.float64)


class Regression(Task):
    """Learns the value of a digit as a number."""

    selected_by = "r2"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.train_sums = Sums()

    def new_sums(self, bundle: Any) -> Sums:
        return Sums()

    def value(self, x: Tensor) -> Tensor:
        return self.model(x).mean((0, -1))

    def forward(self, batch: Any) -> Tensor:
        x, target = batch
        value = self.value(x)
        loss = (value - target / 10).square().mean()
        self.train_sums.add(value, target / 10)
        self.step_losses.append(loss.detach())
        return loss

    def eval_step(self, batch: Any) -> None:
        x, target = batch
        self.eval_sums.add(self.value(x), target / 10)

    @classmethod
    def dry_loss(cls, recipe: Any, model: Any, x: Tensor, classes: int, static: bool) -> Tensor:
        return (model(x).mean((0, -1)) - 0.5).square().mean()

    def columns(self, part: str) -> list[str]:
        return [f"{part}_loss", f"{part}_r2"]

    def train_line(self, scores: Any) -> str:
        return scores.line()

    def title(self, part: str | None) -> str:
        return "R2" + (f"  {part} R2" if part else "")

    def loss_of_a_guess(self, classes: int) -> float | None:
        return None


KIND = kinds.Kind(
    "regression", "numbers", lambda recipe: recipe.data.name == "digit-values",
    "tests.train.test_own_kind:Regression", kinds.Measure("R2", "", 3), "r2", ("R2", 4),
)  # fmt: skip


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))
    monkeypatch.setattr(dataset_catalogue, "DATA_SETS", dict(dataset_catalogue.data_sets()))
    monkeypatch.setattr(model_registry, "_ENTRIES", dict(model_registry._entries()))
    kinds.register(KIND)
    dataset_catalogue.register("digit-values", replace(dataset_catalogue.entry("digits")[1], task="regression"))
    models.register("tiny_regressor", replace(model_registry.entry("cnn7_tiny"), task="regression"))
    return load_recipe("tiny", ["data.name=digit-values", "model.name=tiny_regressor", "schedule.epochs=2"])


def test_a_regression_is_trained_evaluated_recorded_and_shown(recipe, tmp_path):
    check_recipe(recipe)
    assert dry_run(recipe).loss < 10
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    result = train(recipe, folder)
    assert result["status"] == "finished" and set(result["test"]) == {"r2", "loss", "samples"}
    head, *rows = (folder.root / "metrics.csv").read_text().splitlines()
    assert {"train_r2", "validation_r2"} <= set(head.split(",")) and len(rows) == 2
    again = evaluate_run(folder.root)
    assert again.reproduces and again.scores.r2 == result["test"]["r2"]
    assert evaluate_run(folder.root, part="validation").reproduces
    assert f"R2 {result['test']['r2']:.3f}" in repr(load_run(folder.root))
    entry = measurement(folder, "mine", {})
    assert entry.unit == "R2" and entry.value == round(result["test"]["r2"], 4)
    shown = CliRunner().invoke(app, ["show", str(folder.root)])
    assert shown.exit_code == 0 and "test R2" in shown.output and "constant guess" not in shown.output, shown.output
    listed = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert listed.exit_code == 0 and "R2" in listed.output, listed.output
    report = CliRunner().invoke(app, ["report", str(folder.root), "--no-data"])
    assert report.exit_code == 0, report.output
    page = (folder.root / "report.html").read_text()
    assert "R2 by epoch" in page and json.dumps(round(result["test"]["r2"], 3)) in page
    evaluated = CliRunner().invoke(app, ["evaluate", str(folder.root)])
    assert evaluated.exit_code == 0 and "test R2: " in evaluated.output, evaluated.output
    refused = CliRunner().invoke(app, ["fold", str(folder.root)])
    assert refused.exit_code == 1 and "finds numbers" in refused.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.name=digits", "model.name=tiny_regressor"], "'tiny_regressor' is a network for regression"),
        (["data.name=digit-values", "model.name=cnn7_tiny"], "'cnn7_tiny' is a network for classification"),
    ],
)
def test_data_and_network_of_two_kinds_are_refused(recipe, settings, message):
    with pytest.raises(RecipeError, match=message):
        check_recipe(load_recipe("tiny", settings))


def test_a_name_is_taken_once(recipe):
    with pytest.raises(ValueError, match="exists already"):
        kinds.register(KIND)
    with pytest.raises(ValueError, match="exists already"):
        dataset_catalogue.register("digits", dataset_catalogue.entry("digits")[1])

"""train.report, the files that training adds for the report, TensorBoard's histograms, and loggers by name."""

import itertools

import pytest
import torch
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.report.live import PAGE, LiveReport
from steadyspike.report.run_figure import draw_runs
from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import render
from steadyspike.train.files import loggers as loggers_module
from steadyspike.train.files.loggers import Board, Loggers, check_loggers
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.recipe.identity import difference
from steadyspike.train.run.training import Sparingly, train
from tests.report.made import made_run, rewritten
from tests.train.conftest import differing, trained

SHORT = ["schedule.epochs=2"]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A run by the command line, with a report."""
    root = tmp_path_factory.mktemp("live") / "run"
    settings = [word for text in (*SHORT, "train.report=true") for word in ("--set", text)]
    torch.set_num_threads(1)
    return root, call("train", "tiny", *settings, "--out", root)


def test_a_run_with_a_report_leaves_it_and_is_otherwise_the_same(reported, tmp_path):
    root, result = reported
    assert result.exit_code == 0 and f"report: {root / 'report.html'}" in result.output
    page = (root / "report.html").read_text()
    assert ">finished</span>" in page and "data:image/png;base64," in page and "largest memory used" in page
    plain, _ = trained(tmp_path / "plain", SHORT)
    view = read_run(root)
    assert differing(plain, type(plain)(root)) == []
    assert view.result["memory"]["process"] > 1e7 and view.origin["name"] == "tiny"
    assert (
        difference(load_recipe("tiny", ["train.report=true", 'train.loggers=["wandb"]']), load_recipe("tiny")) is None
    )


def test_details_agree_with_the_result(reported):
    root, _ = reported
    view = read_run(root)
    details = view.details
    assert details["accuracy"] == pytest.approx(view.test_scores()[-1]) and details["samples"] == 359
    assert sum(map(sum, details["confusion"])) == 359 and len(details["recall"]) == 10
    steps = len(view.test_scores())
    for one in details["pictures"]:
        assert len(one["steps"]) == steps and one["images"][0].startswith("data:image/png;base64,")
        final = one["steps"][-1][0][0]
        assert (one["kind"] == "wrong") is (final != one["label"])
    membranes = details["membranes"]
    assert membranes["layers"][0] == "stem.lif" and len(membranes["mean"][0]) == steps
    before = (root / "details.json").stat().st_mtime_ns
    assert call("report", root).exit_code == 0 and (root / "details.json").stat().st_mtime_ns == before
    kept = (root / "details.json").read_bytes()
    (root / "details.json").write_bytes(kept[:-9])
    assert call("report", root).exit_code == 0 and (root / "details.json").read_bytes() == kept


def test_event_data_has_a_frame_for_every_step(tmp_path):
    settings = ["schedule.epochs=1", "data.name=digits-events", "data.timesteps=3", "data.train_samples=64"]
    folder, _ = trained(tmp_path / "run", settings)
    assert call("report", folder.root).exit_code == 0
    pictures = read_run(folder.root).details["pictures"]
    assert pictures and all(len(one["images"]) == 3 == len(one["steps"]) for one in pictures)


def test_the_report_is_written_while_the_run_trains(tmp_path, monkeypatch):
    from steadyspike.train.files.folder import RunFolder
    from steadyspike.train.run import training

    monkeypatch.setattr(training, "_GUESS", 0.0)
    monkeypatch.setattr(training, "SHARE", 1e9)
    seen = []

    def look():
        seen.append(len(read_run(tmp_path).epochs))
        if len(seen) == 2:
            raise OSError("no space is left")

    folder = RunFolder(tmp_path)
    with folder.locked():
        result = train(load_recipe("tiny", ["schedule.epochs=3"]), folder, after_epoch=look)
    assert result["status"] == "finished" and seen == [1, 2, 3]
    plain, _ = trained(tmp_path / "plain", ["schedule.epochs=3"])
    assert differing(plain, folder) == []


def test_a_run_that_ends_in_its_first_epoch_has_a_figure_and_a_report(tmp_path):
    folder = made_run(
        tmp_path / "a" / "001",
        epochs=0,
        settings=["schedule.epochs=3"],
        health=["1,1,non_finite,head,it is not finite"],
    )
    rewritten(folder, "result.json", status="diverged", message="it is not finite", layer="head")
    draw_runs({"a": folder}, tmp_path / "figure.png")
    page = render([read_run(folder.root)])
    assert "diverged. " in page and "it is not finite" in page and "0 of 3" in page


def test_a_page_is_written_only_when_there_is_something_new(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    report = LiveReport(folder.root)
    assert not report.news()
    for name in ("metrics.csv", "health.csv"):
        path = folder.root / name
        path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
        assert report.news()
        report()
        assert not report.news() and (folder.root / PAGE).exists()


def test_sparingly_costs_one_percent_and_tells_an_error_once():
    now, told, calls = [0.0], [], []

    def look():
        calls.append(now[0])
        now[0] += 2.0
        raise ValueError("x")

    sparingly = Sparingly(look, told.append, clock=lambda: now[0])
    for _ in range(1000):
        now[0] += 1.0
        sparingly()
    assert calls[0] == 20.0 and all(b - a >= 200 for a, b in itertools.pairwise(calls)) and len(calls) >= 4
    assert 2.0 * len(calls) <= 0.01 * now[0]
    assert told == ["ValueError: x"]


def test_tensorboard_gets_rates_per_step_and_histograms_of_membranes(reported):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    root, _ = reported
    (path,) = (root / "tensorboard").iterdir()
    values = [value for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    tags = {value.tag for value in values}
    assert {"layers/stem.lif/rate_1", "layers/stem.lif/rate_2", "membrane/stem.lif", "membrane/body.5.lif"} <= tags
    assert sum(value.tag == "membrane/stem.lif" for value in values) == 2


def test_a_histogram_is_what_was_seen(tmp_path):
    from steadyspike.nn.lif import LIF
    from steadyspike.train.watch.layers import MembraneWatch

    model = torch.nn.Sequential(LIF(threshold=2.0, init=0.0))
    watch = MembraneWatch(model)
    x = torch.rand(3, 4, 5) - 0.5
    model.eval()
    watch.start()
    model(x)
    model(100 * x)  # only the first batch counts
    actual = watch.take()["0"]
    assert sum(actual.counts) == 20 and actual.low < 0 < actual.high and abs(actual.high) < 1
    board = Board(tmp_path, 1)
    board.add_histograms("membrane", {"0": actual}, 1)
    board.close()
    assert not model[0].taps
    watch.start()
    model(float("nan") * x)
    assert watch.take() == {}
    watch.start()
    watch.close()
    assert "membranes" not in model[0].taps


def test_a_logger_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setattr(loggers_module, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="'wandb' needs a package that is not installed: pip install wandb"):
        check_loggers(["wandb"])
    done = call("train", "tiny", "--set", 'train.loggers=["mlflow"]')
    assert done.exit_code == 1 and "pip install mlflow" in done.output and done.output.count("\n") == 1
    assert call("train", "tiny", "--set", 'train.loggers=["comet"]').exit_code == 1
    monkeypatch.setattr(loggers_module, "find_spec", lambda name: None if name == "sqlalchemy" else name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RecipeError, match="mlflow-skinny"):
        check_loggers(["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    check_loggers(["mlflow"])


class Kept:
    """In place of another package's logger."""

    def __init__(self, fails=False):
        self.rows, self.settings, self.ended, self.fails = [], None, None, fails

    def log_hyperparams(self, settings):
        self.settings = settings

    def log_metrics(self, row, step):
        if self.fails:
            raise ConnectionError("the network is gone\nsecond line")
        self.rows.append((step, row))

    def finalize(self, status):
        self.ended = status


def test_loggers_get_what_tensorboard_gets_and_fail_alone(tmp_path, monkeypatch):
    kept, failing = Kept(), Kept(fails=True)
    monkeypatch.setattr(loggers_module, "check_loggers", lambda names: None)
    monkeypatch.setattr(loggers_module, "_MAKERS", {"wandb": lambda root: kept, "mlflow": lambda root: failing})
    folder, result = trained(tmp_path / "run", ["schedule.epochs=1", 'train.loggers=["mlflow", "wandb"]'])
    assert result["status"] == "finished" and kept.ended == "success" and failing.ended is None
    names = {name for _, row in kept.rows for name in row}
    assert {"epoch/train_loss", "epoch/validation_accuracy_2", "layers/stem.lif/rate_1"} <= names
    assert kept.settings["model"]["name"] == "cnn7_tiny"
    plain, _ = trained(tmp_path / "plain", ["schedule.epochs=1"])
    assert differing(plain, folder) == []
    told = []
    Loggers(load_recipe("tiny", ['train.loggers=["mlflow"]']), tmp_path, told.append).add("epoch", {"x": 1.0}, 1)
    assert told == ["mlflow gets no more numbers: ConnectionError: the network is gone"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_real_logger_where_it_is_installed(name, tmp_path, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    told = []
    loggers = Loggers(load_recipe("tiny", [f'train.loggers=["{name}"]']), tmp_path, told.append)
    loggers.add("epoch", {"loss": 1.0}, 1)
    loggers.close()
    assert told == [] and any(tmp_path.iterdir())


def test_energy_is_kept_for_the_report(reported):
    root, _ = reported
    done = call("energy", root, "--samples", "8")
    assert done.exit_code == 0, done.output
    assert read_run(root).energy["samples"] == 8
    assert call("report", root).exit_code == 0 and "accumulates (AC) per sample" in (root / "report.html").read_text()

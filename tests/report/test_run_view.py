"""What is read from a run folder, whatever state the run is in."""

import json
import math
import subprocess
import sys

import pytest

from steadyspike.report.comparison import best_first, differing_keys, groups
from steadyspike.report.run_list import find_runs, list_runs
from steadyspike.report.run_view import read_run, read_runs
from steadyspike.report.sparkline import PLAIN, sparkline
from steadyspike.train.files.folder import RunError
from steadyspike.train.recipe.load import origin
from tests.report.made import made_run, rewritten


def test_a_run_that_has_ended(tmp_path):
    folder = made_run(tmp_path / "demo" / "001", epochs=4, layers=3)
    view = read_run(folder.root)
    assert (view.label, view.name, view.state.kind, view.state.ended) == ("demo/001", "tiny", "finished", True)
    assert view.epochs == [1, 2, 3, 4] and view.part == "validation" and len(view.curve()) == 4
    assert view.test_scores() == [89.0, 90.0] and view.score() == (90.0, "test", True)
    layers = view.layers
    assert layers.names == ["body.0.lif", "body.1.lif", "body.2.lif", "head"] and layers.epochs == [1, 2, 3, 4]
    assert layers.values["threshold"][3][1] == pytest.approx(1 - 0.01 - 0.004)
    assert layers.values["threshold"][0][3] is None and layers.values["gradient"][1][3] == 0.5
    assert len(layers.rates[2][0]) == 2 and layers.rates[2][3] == []


def test_a_real_run_says_where_its_recipe_comes_from():
    actual = origin("tiny", ["neuron.tau=3.0", "train.seed=4"])
    assert (actual["name"], actual["base"]) == ("tiny", "demo")
    by = {change["key"]: (change["base"], change["value"], change["by"]) for change in actual["changed"]}
    assert by["schedule.epochs"] == (12, 3, "recipe") and by["neuron.tau"] == (None, 3.0, "--set")
    assert by["train.seed"] == (0, 4, "--set") and "optimizer.lr" not in by
    assert origin("demo")["base"] is None and json.dumps(actual)


def test_states(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    view = read_run(folder.root)
    assert view.state.kind == "killed" and not view.state.ended and view.score().final is False
    with folder.locked():
        assert read_run(folder.root).state.kind == "running"
    folder.write_json("result.json", {"status": "interrupted", "signal": 15, "where": "in training"})
    view = read_run(folder.root)
    assert view.state.kind == "stopped" and "in training" in view.state.text and view.result == {}
    with folder.locked():
        assert read_run(folder.root).state.kind == "running"
    ended = made_run(tmp_path / "b")
    rewritten(ended, "result.json", status="diverged", message="layer 'x'")
    assert read_run(ended.root).state == ("diverged", "layer 'x'")


def test_looking_at_a_run_does_not_stop_it_from_starting(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print('held', flush=True); "
        "time.sleep(0.03)"
    )
    (folder.root / ".lock").touch()
    looker = subprocess.Popen([sys.executable, "-c", code, folder.root / ".lock"], stdout=subprocess.PIPE)
    assert looker.stdout.readline()
    with folder.locked():
        pass
    looker.wait()
    looker.stdout.close()


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    with open(folder.root / "metrics.csv", "a") as file:
        file.write("4,200,0.1,0.5")
    assert read_run(folder.root).epochs == [1, 2, 3]
    for name in ("layers", "steps", "health", "metrics"):
        (folder.root / f"{name}.csv").unlink()
    (folder.root / "run.json").unlink()
    view = read_run(folder.root)
    assert view.epochs == [] and view.score() is None and view.layers.names == []


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("metrics.csv", b"epoch\n1\n", "metrics.csv .*restore it from a copy"),
        ("recipe.toml", b"[model]\n", "recipe.toml is damaged"),
        ("result.json", b"{}", "result.json is damaged"),
        ("run.json", b"\xff\xfe", "run.json is damaged"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, name, content, text):
    folder = made_run(tmp_path / "a")
    (folder.root / name).write_bytes(content)
    with pytest.raises(RunError, match=text) as error:
        read_run(folder.root)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rows", ["x,1,2\n", "1,2\n", "1,2,3,4\n", '1,2,"3\n', "\xff,2,3\n"])
def test_a_damaged_table_of_a_run_without_result_is_one_line(tmp_path, rows):
    folder = made_run(tmp_path / "a", ended=False)
    (folder.root / "metrics.csv").write_bytes(("epoch,step,train_loss\n" + rows).encode("latin1"))
    with pytest.raises(RunError, match=r"metrics\.csv is damaged"):
        read_run(folder.root)


def test_what_is_not_finite_is_none(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    (folder.root / "metrics.csv").write_text("epoch,step,lr,train_loss,train_accuracy\n1,1,0.1,nan,10\n2,2,0.1,inf,9\n")
    view = read_run(folder.root)
    assert view.metrics["train_loss"] == [None, None] and view.curve() == [10.0, 9.0] and view.part is None


def test_optional_files_that_are_damaged_are_done_without(tmp_path):
    folder = made_run(tmp_path / "a")
    for name in ("origin.json", "details.json", "energy.json"):
        (folder.root / name).write_text("{")
    view = read_run(folder.root)
    assert view.origin is None and view.details is None and view.energy is None and view.name == tmp_path.name
    assert [text.partition(":")[0] for text in view.warnings] == ["origin.json is damaged"]
    (folder.root / "origin.json").unlink()
    assert read_run(folder.root).warnings == []


def test_labels_tell_runs_apart(tmp_path):
    for location in ("x/demo/001", "y/demo/001"):
        made_run(tmp_path / location)
    views = read_runs([tmp_path / "x/demo/001", tmp_path / "y/demo/001", tmp_path / "x/demo/../demo/001"])
    assert [view.label for view in views] == ["x/demo/001", "y/demo/001"]


def test_runs_are_grouped_by_configuration_and_ordered_by_accuracy(tmp_path):
    made_run(tmp_path / "r" / "a", accuracy=80.0)
    made_run(tmp_path / "r" / "b", accuracy=84.0, settings=["train.seed=1", "train.log_every=7"])
    made_run(tmp_path / "r" / "c", accuracy=83.0, settings=["neuron.tau=3.0", "model.options.dropout=0.5"])
    made_run(tmp_path / "r" / "d", accuracy=99.0, settings=["neuron.tau=3.0"], ended=False)
    views = best_first(read_runs(list(find_runs(tmp_path))))
    assert [view.label[-1] for view in views] == ["b", "c", "a", "d"]
    assert [[run.label[-1] for run in group.runs] for group in groups(views)] == [["c"], ["b", "a"], ["d"]]
    seeds = next(group for group in groups(views) if len(group.runs) == 2)
    assert (seeds.mean, seeds.ended, sorted(seeds.seeds)) == (82.0, 2, [0, 1])
    assert seeds.spread == pytest.approx(math.sqrt(8))
    differing = differing_keys(views)
    assert differing["model.options.dropout"] == [0.0, 0.5, 0.0, 0.0] and differing["train.seed"] == [1, 0, 0, 0]
    assert list(differing_keys(views, seeds=False)) == ["model.options.dropout", "neuron.tau"]


def test_the_list_of_runs(tmp_path):
    made_run(tmp_path / "r" / "a")
    made_run(tmp_path / "r" / "b", ended=False, epochs=5)
    rewritten(made_run(tmp_path / "r" / "c"), "result.json", status="diverged", message="m")
    (made_run(tmp_path / "r" / "d").root / "result.json").write_text("{}")
    made_run(tmp_path / "r" / "a" / "inside")
    (tmp_path / "r" / "e").symlink_to(tmp_path / "r")
    actual = {line.path.name: line for line in list_runs(tmp_path)}
    assert sorted(actual) == ["a", "b", "c", "d"]
    assert (actual["a"].state, actual["a"].score, actual["a"].seconds) == ("finished", 90.0, 12.0)
    assert (actual["b"].state, actual["b"].epoch, actual["b"].epochs, actual["b"].part) == (
        "killed",
        5,
        5,
        "validation",
    )
    assert actual["c"].state == "diverged" and actual["d"].state == "damaged"
    with pytest.raises(RunError, match="is not a folder"):
        list_runs(tmp_path / "nothing")


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, None, 7], marks=PLAIN) == "_ #" and sparkline([None]) == "" and sparkline([5, 5]) == "▁▁"
    assert len(sparkline(list(range(1000)), 20)) == 20 and sparkline([5.0], low=0.0, high=10.0) in "▄▅"

"""Runs that find boxes: every number with its metric, evaluated epochs joined, mAP by class and size, pictures."""

import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.detection.report_section import pictures
from steadyspike.report.comparison import best_first, groups
from steadyspike.report.page_data import page_data
from steadyspike.report.run_list import list_runs
from steadyspike.report.run_view import read_run, read_runs
from steadyspike.report.write_page import render
from steadyspike.train.recipe.kinds import ACCURACY, BOXES
from steadyspike.train.recipe.schema import Paper
from tests.report.made import made_run


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "boxes" / "001", boxes=True, epochs=5, accuracy=70.0).root


def test_epochs_that_were_not_evaluated_are_no_gaps(run):
    view = read_run(run)
    assert view.measure is BOXES and view.score() == (0.7, "test", True) and view.part == "validation"
    assert view.evaluated() == [1, 3] and view.evaluated_curve() == pytest.approx([0.28, 0.56])
    actual = page_data([view])["runs"][0]
    assert actual["score"] == {"validation": {"x": [2, 4], "y": [0.28, 0.56]}}
    assert actual["loss"]["training"]["x"] == [1, 2, 3, 4, 5] and actual["loss"]["validation"]["x"] == [2, 4]
    assert actual["test"] == [] and actual["boxes"]["all"] == {"x": [2, 4], "y": [0.7, 0.7]}
    assert actual["boxes"]["bar"]["y"] == [None, None]


def test_the_page_names_the_metric_and_has_the_table_and_the_pictures(run):
    page = render([read_run(run)])
    for text in ("test mAP@.5</dt>", ">0.700<", "test mAP@.5:.95</dt>", "mAP@.5 by epoch", "&lt;b&gt;disc", "no boxes",
                 "medium boxes 0.300", "all, as YOLO code computes it", "data:image/jpeg;base64,",
                 "After epoch 5"):  # fmt: skip
        assert text in page, text
    assert "ccuracy (%) by epoch" not in page and "a constant guess" not in page and "<b>" not in page


def test_the_terminal_names_the_metric(run):
    shown = call("show", run).output
    assert "test mAP@.5  0.700" in shown and "constant guess" not in shown and "small no boxes, medium 0.300" in shown
    assert "validation mAP@.5" in shown and "accuracy" not in shown
    listed = call("runs", run.parent).output
    assert "0.700  mAP@.5" in listed and "%" not in listed
    made_run(run.parent / "002", boxes=True, epochs=5, accuracy=60.0, ended=False)
    line = list_runs(run.parent)[-1]
    assert (line.score, line.measure, line.epoch) == (pytest.approx(0.48), BOXES, 5)
    compared = call("compare", run, run.parent / "002").output
    assert "mAP@.5 by epoch" in compared and "accuracy" not in compared and "validation mAP@.5 of the best" in compared


def test_measures_are_not_compared_with_each_other(run, tmp_path):
    other = made_run(tmp_path / "classes" / "001", settings=["train.seed=1"]).root
    runs = read_runs([run, other])
    assert [one.measure for one in best_first(runs)] == [BOXES, ACCURACY] == [one.measure for one in groups(runs)]
    page = render(runs, runs[1])
    assert 'data-measure="mAP@.5"' in page and 'data-measure="accuracy"' in page
    assert "0.700 mAP@.5" in page and "90.00 % accuracy" in page and "-89." not in page and "+89." not in page
    compared = call("compare", run, other).output
    assert "0.700 mAP@.5" in compared and "90.00 %" in compared and "89." not in compared


def test_the_papers_map_is_a_share_of_one(run):
    view = read_run(run)
    view.recipe = view.recipe.model_copy(update={"paper": Paper(value=0.6, unit="mAP@.5", where="table 9")})
    assert "+0.100 against it; table 9" in render([view])


def test_pictures_that_cannot_be_read_are_left_out(run):
    (run / "pictures" / "epoch-003.png").write_bytes(b"no picture")
    (run / "pictures" / "epoch-004.png").write_bytes((run / "pictures" / "epoch-005.png").read_bytes())
    (run / "pictures" / "epoch-x.png").write_bytes(b"")
    assert [one.epoch for one in pictures(run, 9)] == [4, 5] and [one.epoch for one in pictures(run, 1)] == [5]
    assert call("report", run).exit_code == 0

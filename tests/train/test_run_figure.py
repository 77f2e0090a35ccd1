"""The figure that ends every run shows what the run's tables hold."""

from __future__ import annotations

import pytest

from steadyspike.commands.train import draw
from steadyspike.report.run_figure import draw_runs, figure_of
from steadyspike.train.files.tables import read_table

pytest.importorskip("matplotlib")


def panel(figure, title):
    return next(axis for axis in figure.axes if axis.get_title().startswith(title))


def test_curves_and_rates_are_those_of_the_tables(finished):
    figure = figure_of({"one": finished})
    rows = read_table(finished.root / "metrics.csv")
    (line,) = panel(figure, "training loss").lines
    assert list(line.get_ydata()) == [float(row["train_loss"]) for row in rows]
    (line,) = panel(figure, "validation accuracy at every epoch").lines
    assert list(line.get_ydata()) == [float(row[[n for n in row if "_accuracy_" in n][-1]]) for row in rows]
    (line,) = panel(figure, "test accuracy").lines
    assert list(line.get_ydata()) == finished.read_json("result.json")["test"]["accuracy"]
    layers = read_table(finished.root / "layers.csv")
    final = [row for row in layers if row["epoch"] == layers[-1]["epoch"] and row["rate_1"]]
    heat = panel(figure, "firing rate")
    assert [tick.get_text() for tick in heat.get_yticklabels()] == [row["layer"] for row in final]
    assert [text.get_text() for text in heat.texts][:2] == [f"{float(final[0][k]):.2f}" for k in ("rate_1", "rate_2")]
    for column, title in (("threshold", "threshold V"), ("tau", "time constant tau")):
        for line in panel(figure, title).lines:
            own = [float(row[column]) for row in layers if row["layer"] == line.get_label() and row[column]]
            assert own and list(line.get_ydata()) == own


def test_two_runs_differ_in_colour_and_in_line_style(finished):
    figure = figure_of({"a": finished, "b": finished})
    first, second = panel(figure, "training loss").lines
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()
    names = [text.get_text() for axis in figure.axes if axis.get_legend() for text in axis.get_legend().get_texts()]
    assert {"a", "b"} <= set(names)
    with pytest.raises(ValueError, match="1 to 4 runs, got 5"):
        figure_of({str(i): finished for i in range(5)})


def test_the_file_is_an_image_with_something_on_it(finished, tmp_path):
    from PIL import Image

    with Image.open(draw_runs({"one": finished}, tmp_path / "new" / "figure.png")) as image:
        assert image.format == "PNG" and image.width > image.height > 500
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50


def test_a_figure_that_cannot_be_drawn_does_not_end_a_run(finished, tmp_path, capsys):
    from steadyspike.train.files.folder import RunFolder

    draw({"status": "finished"}, RunFolder(tmp_path))
    assert "no figure: FileNotFoundError" in capsys.readouterr().out and not (tmp_path / "figure.png").exists()
    draw({"status": "interrupted"}, RunFolder(tmp_path))
    assert capsys.readouterr().out == ""

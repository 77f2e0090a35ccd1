"""`steadyspike runs`, `show` and `compare` as a user sees them."""

import io
import os
import time
from contextlib import ExitStack

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.commands import show as show_command
from steadyspike.commands.show import glance
from steadyspike.commands.terminal import PLAIN, SafeConsole, marks, number, when
from steadyspike.disk.plain_text import plain
from steadyspike.report.run_view import read_run
from steadyspike.train.files.folder import RunFolder
from tests.report.made import made_run

ESCAPES = "evil\x1b[2J\x1b]0;title\x07\u202e[bold]name[/bold]"


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def folder(tmp_path):
    made_run(tmp_path / "demo" / "001", accuracy=90.0)
    made_run(tmp_path / "demo" / "002", accuracy=92.0, settings=["train.seed=1"])
    made_run(tmp_path / "other" / "001", accuracy=70.0, settings=["neuron.tau=3.0"], name="other", ended=False)
    return tmp_path


def test_runs_lists_state_accuracy_and_time(folder):
    result = call("runs", folder)
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.output.splitlines()[1:4]}
    assert "finished" in rows["demo/001"] and "90.00" in rows["demo/001"] and "12 s" in rows["demo/001"]
    assert (
        "killed 3/3" in rows["other/001"]
        and "% accuracy*" in rows["other/001"]
        and "not of the test part" in result.output
    )
    best = call("runs", folder, "--sort", "accuracy", "--last", "1").output.splitlines()
    assert best[1].startswith("demo/002") and len(best) == 2  # no note about a run that is not shown
    assert "demo" not in call("runs", folder, "other").output
    assert call("runs", folder, "--state", "running").exit_code == 1
    assert call("runs", folder / "nothing").exit_code == 1
    assert call("runs", folder, "--sort", "colour").exit_code == 2


def test_compare_is_best_first_with_differences_and_spread(folder):
    result = call("compare", *(folder / name for name in ("demo/001", "demo/002", "other/001")))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1].startswith("1  demo/002") and lines[2].startswith("2  demo/001") and "-2.00" in lines[2]
    assert lines[3].startswith("3  other/001") and "this run has no result" in result.output
    assert "accuracy (%)" in lines[0] and "accuracy by epoch" in lines[0]
    key = next(line for line in lines if line.startswith("neuron.tau"))
    assert key.split() == ["neuron.tau", "-", "-", "3.0"]
    assert "91.00 ± 1.41" in result.output
    assert call("compare", folder / "demo/001").exit_code == 2
    assert call("compare", folder / "demo/001", folder).exit_code == 1
    for number_of_run in range(3, 6):
        made_run(folder / "demo" / f"00{number_of_run}", settings=[f"train.seed={number_of_run}"])
    many = call("compare", *sorted((folder / "demo").iterdir()))
    assert "train.seed=4" in many.output


def test_show_is_one_screen(folder):
    result = call("show", folder / "demo/001")
    assert result.exit_code == 0, result.output
    for text in (
        "demo/001  finished",
        "89.00  90.00",
        "epoch 3 of 3",
        "training loss",
        "body.1.lif",
        "nothing was found",
    ):
        assert text in result.output
    assert call("show", folder).exit_code == 1 and call("show", folder).output.count("\n") == 1


def test_show_follows_a_run_that_trains(folder, monkeypatch):
    run, training, looks, again = RunFolder(folder / "other" / "001"), ExitStack(), [], show_command._again

    def look(root, view):
        looks.append(view.state.kind)
        if len(looks) == 2:
            training.close()  # the run is killed
        return again(root, view)

    monkeypatch.setattr(show_command, "_LOOK", 0.001)
    monkeypatch.setattr(show_command, "_again", look)
    training.enter_context(run.locked())
    result = call("show", run.root, "--follow")
    assert looks == ["running", "running"]
    assert result.exit_code == 0 and "epoch 3/3  loss" in result.output and "killed" in result.output


@pytest.mark.parametrize("columns", [80, 60])
def test_lines_fit_the_terminal_and_have_no_colour_elsewhere(folder, columns):
    view = read_run(made_run(folder / "long" / "name-of-a-run-that-is-long", layers=3).root)
    console = Console(width=columns, force_terminal=True)
    with console.capture() as capture:
        console.print(glance(view, "▁█"))
    assert "\x1b[" in capture.get()
    lines = Console(width=columns).render_lines(glance(view, "▁█"))
    assert all(sum(len(piece.text) for piece in line) <= columns for line in lines)
    assert "\x1b" not in call("show", view.root).output


def test_what_a_file_says_cannot_steer_the_terminal(tmp_path):
    made_run(tmp_path / "a" / "001", names=[ESCAPES, "fine"], name=ESCAPES, health=[f'1,1,k,x,"{ESCAPES}"'],
             settings=["note=" + "x"])  # fmt: skip
    made_run(tmp_path / "a" / "002", settings=["train.seed=1"])
    for output in (call("show", tmp_path / "a/001").output, call("runs", tmp_path).output,
                   call("compare", tmp_path / "a/001", tmp_path / "a/002").output):  # fmt: skip
        assert "\x1b" not in output and "\x07" not in output and "\u202e" not in output
    assert "[bold]name[/bold]" in call("runs", tmp_path).output


def test_the_name_of_a_folder_cannot_steer_the_terminal_or_stop_the_report(tmp_path):
    for name in (ESCAPES.replace("/", ""), os.fsdecode(b"no utf-8 \xff")):
        root = made_run(tmp_path / name / "001", ended=False).root
        done = call("report", root)
        assert done.exit_code == 0 and (root / "report.html").exists(), done.output
        missing = call("show", tmp_path / name / "002")
        assert missing.exit_code == 1 and missing.output.startswith("error: ")
        for output in (done.output, missing.output, call("show", root).output, call("runs", tmp_path).output):
            assert "\x1b" not in output and "\x07" not in output and "\u202e" not in output


def test_a_usage_error_spells_out_what_was_typed():
    done = call("evaluate", "run", "\x1b[31mevil\u202ex")
    assert done.exit_code == 2 and "\\u202ex" in done.output
    assert not set(done.output) & {"\x1b", "\u202e"}


def test_the_report_replaces_pages_only(folder):
    root, pipe, page = folder / "demo/001", folder / "pipe", folder / "page.html"
    os.mkfifo(pipe)
    recipe = (root / "recipe.toml").read_bytes()
    for out in (root / "recipe.toml", folder, pipe):
        done = call("report", root, "--no-data", "-o", out)
        assert done.exit_code == 1 and done.output.startswith("error: ") and done.output.count("\n") == 1
    assert (root / "recipe.toml").read_bytes() == recipe and pipe.is_fifo()
    assert [call("report", root, "--no-data", "-o", page).exit_code for _ in range(2)] == [0, 0]


def test_small_things():
    assert plain("a\x1b[1mb\n") == "a\\x1b[1mb\\n" and plain("déjà 猫") == "déjà 猫"
    assert number(None) == "" and number(0.0001234) == "0.000123"
    assert number(12.3456) == "12.346" and number(0) == "0.000"
    noon = time.mktime((2026, 11, 16, 12, 0, 0, 0, 0, -1))
    assert when(noon, noon + 60) == "12:00" and when(noon - 86400, noon) == "11-15 12:00"
    assert when(noon - 400 * 86400, noon).startswith("2025-")

    class Ascii:
        encoding = "ascii"

    assert marks(Ascii()) == PLAIN


def test_the_console_obeys_nothing_that_is_printed():
    """Strings, cells, panels and texts: markup stays, escape sequences and direction marks are spelled out."""
    evil = "a[/b] [red]c :smile: \x1b[31m\u202e\x07d"
    page = io.StringIO()
    console = SafeConsole(file=page, width=200, force_terminal=True, color_system=None)
    table = Table("name", title=evil)
    table.add_row(evil)
    table.add_row(Text(evil))
    for thing in (evil, table, Panel(evil, title=Text(evil)), Text(evil), console.status(evil).renderable):
        console.print(thing, soft_wrap=True)
    console.print("[bold]ours[/]", markup=True)
    text = page.getvalue()
    assert text.count("[/b] [red]c :smile: \\x1b[31m\\u202e") >= 7
    assert not set(text) & {"\u202e", "\x07"} and "\x1b" not in text
    assert "ours" in text and "[bold]ours" not in text

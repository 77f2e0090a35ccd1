"""docs/reproduce.md and docs/theory.md: their code runs and gives the numbers they show."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadyspike.cli import app

DOCS = Path(__file__).parents[2] / "docs"


def code(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


def test_code_of_the_page_on_commands_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["--set", "schedule.epochs=1", "--set", "data.train_samples=64", "--out", "runs/demo/001"]
    assert CliRunner().invoke(app, ["train", "demo", *short]).exit_code == 0
    exec(compile(code("reproduce.md"), "reproduce.md", "exec"), {})
    assert "mean shift" in capsys.readouterr().out


def test_numbers_of_the_theory_page_are_what_its_code_gives():
    lines = code("theory.md").splitlines()
    names = {}
    exec("\n".join(line for line in lines if "#" not in line), names)
    shown = [line.split("#") for line in lines if "#" in line]
    assert len(shown) == 3
    for expression, comment in shown:
        assert eval(expression, names) == pytest.approx(float(comment.split(",")[0]), abs=6e-4)

"""docs/data.md: its code runs, and its table names every data set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import steadyspike.data as data

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "data.md", "exec"), {})


def test_every_data_set_has_a_row() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert [name for name in data.names() if f"`{name}`" not in rows] == []

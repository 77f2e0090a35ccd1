"""docs/data.md: its table names every data set."""

from __future__ import annotations

from pathlib import Path

import steadyspike.data as data

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_every_data_set_has_a_row() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert [name for name in data.names() if f"`{name}`" not in rows] == []

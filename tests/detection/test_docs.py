"""docs/detection.md: its table of sizes is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from steadyspike import data, models
from tests.models.members import weights_and_neurons

TEXT = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()


@pytest.mark.parametrize("name", ["ems_resnet10", "ems_resnet10_ee", "ems_resnet18_ee"])
def test_sizes(name: str) -> None:
    with torch.device("meta"):
        weights, lifs = weights_and_neurons(models.create(name))
    assert re.search(rf"^\| `{name}` \| \S+ \| {weights:,} \| {lifs} \|$", TEXT, re.MULTILINE)


def test_every_detection_set_has_a_row() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    actual = [name for name in data.names() if data.dataset_catalogue.entry(name)[1].task == "detection"]
    assert actual and all(f"`{name}`" in rows for name in actual)

"""docs/models.md: its table of weights is true."""

from __future__ import annotations

import pathlib
import re

import pytest
import torch

from steadyspike import models
from tests.models.members import weights_and_neurons

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()


@pytest.mark.parametrize("name", ["resnet19", "cnn7", "vggsnn", "vgg9", "resnet34", "sew_resnet34", "sew_dvs"])
def test_the_table_of_names_is_true(name: str) -> None:
    with torch.device("meta"):
        weights, lifs = weights_and_neurons(models.create(name))
    (row,) = re.findall(rf"^\| `{name}` \|.*$", TEXT, re.MULTILINE)
    assert f"| {weights:,} | {lifs} |" in row


@pytest.mark.parametrize(
    "name",
    ["spikformer_cifar", "spikingformer_dvs", "sdt_dvs", "qkformer_cifar", "qkformer_dvs", "spikingresformer_cifar"],
)
def test_the_table_of_transformers_is_true(name: str) -> None:
    test_the_table_of_names_is_true(name)


def test_every_name_and_option_is_documented() -> None:
    for name in models.names():
        if not name.startswith("ms_resnet"):
            assert f"`{name}`" in TEXT
        for option in models.model_registry.entry(name).option_names():
            assert f"`{option}`" in TEXT, option

"""The code of docs/training.md runs, and its tables name what there is."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from steadyspike.train.files.tables import read_table
from steadyspike.train.recipe.schema import Health, Recipe

TEXT = (Path(__file__).parent.parent.parent / "docs" / "training.md").read_text()


def test_the_library_example_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = next(c for c in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "class Steps" in c)
    names: dict = {}
    exec(code, names)
    assert names["result"]["status"] == "finished" and len(names["losses"]) == 5


def test_the_example_for_lightning_runs(monkeypatch, tmp_path):
    """SpikingTask has the recipe's network, loss, optimizer and schedule: its weights are those of our own loop."""
    pytest.importorskip("lightning")
    from steadyspike.train.files.checkpoint import read_checkpoint
    from tests.train.conftest import trained

    monkeypatch.chdir(tmp_path)
    code = next(c for c in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "Trainer(" in c)
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice
        exec(code, names)
    task = names["task"].task
    folder, _ = trained(tmp_path / "own", ["schedule.epochs=1"])
    ours = read_checkpoint(folder.last)["state_dict"]
    assert all(torch.equal(value, ours[name]) for name, value in task.model.state_dict().items())
    (row,) = read_table(folder.root / "metrics.csv")
    assert task.last_eval.cells("validation")["validation_loss"] == float(row["validation_loss"])


def test_health_keys_and_tables_are_all_documented():
    policies = [name for name in Health.model_fields if name not in ("min_threshold", "max_gradient", "patience")]
    assert all(f"`{name}`" in TEXT for name in policies)
    tables = [name for name, field in Recipe.model_fields.items() if name not in ("about", "shown", "note")]
    assert all(f"[{name}]" in TEXT for name in tables)

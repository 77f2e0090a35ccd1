"""The code of docs/training.md runs, and its tables name what there is."""

import re
import warnings
from pathlib import Path

from steadyspike.train.recipe.schema import Health, Recipe

TEXT = (Path(__file__).parent.parent.parent / "docs" / "training.md").read_text()


def test_the_library_example_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = next(c for c in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "Trainer(" in c)
    names: dict = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)  # Lightning's own
        exec(code, names)
    assert names["trainer"].global_step == 5 and names["task"].last_eval is not None


def test_health_keys_and_tables_are_all_documented():
    policies = [name for name in Health.model_fields if name not in ("min_threshold", "max_gradient", "patience")]
    assert all(f"`{name}`" in TEXT for name in policies)
    tables = [name for name, field in Recipe.model_fields.items() if name not in ("about", "shown", "note")]
    assert all(f"[{name}]" in TEXT for name in tables)

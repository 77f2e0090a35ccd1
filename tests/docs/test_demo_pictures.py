"""The pictures of the demo and the list of recipes show the same runs."""

import json
from pathlib import Path

import pytest

from steadyspike.results.measured import recorded
from steadyspike.train.recipe import find_recipe

ROOT = Path(__file__).parent.parent.parent
FIGURES = ROOT / "docs" / "figures"


@pytest.mark.parametrize("name", ["demo.png", "report.png"])
@pytest.mark.parametrize("recipe", ["demo", "demo-baseline"])
def test_a_picture_shows_the_recorded_run(name, recipe):
    """benchmarks/demo_pictures.py draws both from the run whose number `steadyspike recipes` lists."""
    image = pytest.importorskip("PIL.Image")
    with image.open(FIGURES / name) as picture:
        shown = json.loads(picture.text["accuracies"])
    newest = recorded(find_recipe(recipe))[-1]
    assert newest.seed == 0 and newest.value == pytest.approx(shown[f"{recipe}/001"], abs=0.005)


def test_the_readme_gives_the_numbers_of_the_figure():
    """Its accuracies after one step are those of the runs in the figure, rounded."""
    baseline, both = (recorded(find_recipe(name))[-1].numbers["after step 1"] for name in ("demo-baseline", "demo"))
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"the accuracy after one step is {baseline:.0f} %; with them it is {both:.0f} %" in text

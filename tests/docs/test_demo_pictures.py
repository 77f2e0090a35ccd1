"""The pictures of the demo and the list of recipes show the same runs."""

import json
from pathlib import Path

import pytest

from steadyspike.train.recipe import find_recipe
from steadyspike.train.recipe.measured import recorded

FIGURES = Path(__file__).parent.parent.parent / "docs" / "figures"


@pytest.mark.parametrize("name", ["demo.png", "report.png"])
@pytest.mark.parametrize("recipe", ["demo", "demo-baseline"])
def test_a_picture_shows_the_recorded_run(name, recipe):
    """benchmarks/demo_pictures.py draws both from the run whose number `steadyspike recipes` lists."""
    image = pytest.importorskip("PIL.Image")
    with image.open(FIGURES / name) as picture:
        shown = json.loads(picture.text["accuracies"])
    newest = recorded(find_recipe(recipe))[-1]
    assert newest.seed == 0 and newest.value == pytest.approx(shown[f"{recipe}/001"], abs=0.005)

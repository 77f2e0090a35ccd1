"""Every packaged recipe can be built at full size, and a narrow copy of it makes a training step."""

import pytest

from steadyspike.train.building.dry_run import data_shape, dry_run
from steadyspike.train.files.same_recipe import difference
from steadyspike.train.recipe import load_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names(bases=True))
def test_it_builds_and_makes_a_step(name):
    done = dry_run(load_recipe(name))
    assert done.parameters > 1000 and 0 < done.loss < 100


def test_a_size_in_the_recipe_counts():
    assert data_shape(load_recipe("tiny", ["data.options.canvas=20"]))[2] == (20, 20)
    assert data_shape(load_recipe("tiny", ["data.name=dvs-cifar10", "data.size=[32, 64]"]))[2] == (32, 64)


def test_the_papers_imagenet_row_at_four_steps_is_the_six_step_training_read_early():
    four, six = load_recipe("imagenet-resnet34-t4"), load_recipe("imagenet-resnet34-t6")
    assert difference(four, six) is None
    assert (four.paper.value, four.paper.spread, six.paper.value) == (67.15, 0.03, 68.73)

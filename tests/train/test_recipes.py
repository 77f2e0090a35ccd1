"""Every packaged recipe can be built at full size, and a narrow copy of it makes a training step."""

import pytest

from steadyspike.train.build.dry_run import data_shape, dry_run
from steadyspike.train.recipe import load_recipe, recipe_names
from steadyspike.train.recipe.identity import difference
from steadyspike.train.recipe.recipe_catalogue import packaged


def _names() -> list:
    """The larger transformers differ from the smaller ones by a few numbers: all but one of them are for `slow`."""
    large = [name for name in recipe_names() if packaged()[name].group == "transformers-large"]
    rest = set(large) - {"imagenet-sdt-10-512-t4"}
    return [pytest.param(n, marks=pytest.mark.slow) if n in rest else n for n in recipe_names(bases=True)]


@pytest.mark.parametrize("name", _names())
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


# What the official repositories say, by (recipe, key): configuration files and timm's defaults.
PUBLISHED = {
    "imagenet-spikformer-8-384-t4": "adamw 5e-4 0.05 192 310 20 1e-6 1e-5 0.8 1.0 0.25 1",
    "imagenet-spikingformer-8-384-t4": "adamw 5e-4 0.05 288 310 20 1e-6 1e-5 0.8 1.0 0.25 1",
    "imagenet-sdt-8-384-t4": "lamb 1.5e-3 0.01 384 310 20 1e-5 1.5e-5 0.2 1.0 0.0 3",
    "imagenet-qkformer-10-384-t4": "adamw 1.2e-3 0.05 512 200 5 0 1e-6 0 0 0.25 1",
    "imagenet-spikingresformer-ti-t4": "adamw 1e-3 0.01 256 320 3 1e-5 1e-5 0.2 1.0 0.0 1",
    "imagenet-spikformer-8-768-t4": "adamw 5e-4 0.05 192 310 20 1e-6 1e-5 0.8 1.0 0.25 1",
    "imagenet-spikingformer-8-512-t4": "adamw 5e-4 0.05 288 310 20 1e-6 1e-5 0.8 1.0 0.25 1",
    "imagenet-sdt-8-512-t4": "lamb 1.5e-3 0.01 384 310 20 1e-5 1.5e-5 0.2 1.0 0.0 3",
    "imagenet-sdt-10-512-t4": "lamb 1e-3 0.01 288 310 20 1e-5 2e-5 0.2 1.0 0.0 1",
    "imagenet-sdt-8-768-t4": "lamb 1e-3 0.01 288 310 20 1e-5 2e-5 0.2 1.0 0.0 3",
    "imagenet-qkformer-10-512-t4": "adamw 1.2e-3 0.05 512 200 5 0 1e-6 0 0 0.25 1",
    "imagenet-qkformer-10-768-t4": "adamw 1.35e-3 0.05 576 200 5 0 1e-6 0 0 0.25 1",
    "imagenet-spikingresformer-s-t4": "adamw 1e-3 0.01 256 320 3 1e-5 1e-5 0.2 1.0 0.0 1",
    "imagenet-spikingresformer-m-t4": "adamw 8e-4 0.01 224 320 3 1e-5 1e-5 0.2 1.0 0.0 1",
    "imagenet-spikingresformer-l-t4": "adamw 5e-4 0.01 128 320 3 1e-5 1e-5 0.2 1.0 0.0 1",
    "dvs-cifar10-spikingresformer-t16": "adamw 5e-4 0.05 8 300 3 1e-5 1e-5 0 0 0 1",
    "dvs-gesture-spikingresformer-t16": "adamw 1e-4 0.05 8 300 3 1e-5 1e-5 0 0 0 1",
    "dvs-gesture-qkformer-t16": "adamw 1e-3 0.06 16 202 10 1e-5 2e-5 0.5 0 0 1",
    "dvs-cifar10-spikformer-t10": "adamw 1e-3 0.06 16 106 10 1e-5 1e-5 0.5 0 0 1",
    "dvs-cifar10-spikingformer-t10": "adamw 1e-3 0.06 16 106 10 1e-5 1e-5 0.5 0 0 1",
    "dvs-cifar10-qkformer-t10": "adamw 5e-3 0.06 16 106 10 1e-5 1e-5 0.5 0 0 1",
    "dvs-cifar10-sdt-t10": "adamw 7.5e-3 1e-4 32 210 10 1e-3 3e-4 0 0 0 1",
    "cifar10-spikformer-t4": "adamw 5e-4 0.06 128 310 20 1e-5 1e-5 0.5 0 0.25 1",
    "cifar10-spikingformer-t4": "adamw 5e-4 0.06 64 410 20 1e-5 1e-5 0.5 0 0.25 1",
    "cifar10-qkformer-t4": "adamw 1e-3 0.06 64 410 20 1e-5 1e-5 0.5 0 0.25 1",
    "cifar10-sdt-t4": "adamw 3e-4 0.06 64 310 20 1e-6 1e-5 0.5 0 0 1",
    "cifar10-spikingresformer-t4": "adamw 5e-4 0.01 128 600 3 1e-5 1e-5 0.5 0 0 1",
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("method", ["", "-original"])
def test_transformers_are_trained_as_their_repositories_do(name, method):
    r = load_recipe(name + method)
    a, s = r.augment, r.schedule
    actual = [r.optimizer.lr, r.optimizer.weight_decay, r.data.batch_size, s.epochs, s.warmup, s.warmup_lr, s.min_lr]
    optimizer, *numbers = PUBLISHED[name].split()
    assert r.optimizer.name == optimizer
    assert [*actual, a.mixup, a.cutmix, a.erase, a.repeats] == [float(number) for number in numbers]
    # SpikingResformer's code gives event data one-hot labels, whatever its files contain.
    assert r.loss.options.get("label_smoothing", 0.0) == (0.0 if "-spikingresformer-t16" in name else 0.1)
    assert not r.optimizer.decay_norms
    assert (r.neuron.init == "zero") == bool(method)


def test_crops_and_mixing_of_transformers_on_cifar():
    options = load_recipe("cifar100-spikingresformer-t4").data.options
    # No random crop: its scale is 1.
    assert options["augment"] == {"flip": True, "rand": "rand-m7-n1-mstd0.5-inc1", "interpolation": "bicubic"}
    assert options["std"][0] == 0.2675 and load_recipe("cifar100-qkformer-t4").data.options["std"][0] == 0.2470
    untils = [load_recipe(f"cifar10-{net}-t4").augment.mix_until for net in ("spikformer", "sdt", "spikingresformer")]
    assert untils == [200, 200, 0]
    five = load_recipe("cifar10-spikformer-t4").data.options["augment"]["operations"]
    assert five == ["equalize", "rotate", "shear_x", "translate_x", "translate_y"]
    assert "operations" not in load_recipe("cifar10-qkformer-t4").data.options["augment"]
    heads = [load_recipe(f"{data}-spikingformer-t4").model.options.get("heads") for data in ("cifar10", "cifar100")]
    assert heads == [None, 8]


def test_spikingresformer_takes_three_channels_of_events():
    recipe = load_recipe("dvs-cifar10-spikingresformer-t16")
    assert data_shape(recipe) == (10, 3, (64, 64), False) and recipe.data.timesteps == 16
    assert recipe.data.options["augment"] == {"flip": True, "clip": "one-of-three"} and recipe.data.options["antialias"]
    sizes = {"s": "rand-m7-mstd0.5-inc1", "m": "rand-m9-mstd0.5-inc1", "l": "rand-m9-n3-mstd0.5-inc1"}
    for size, rand in sizes.items():
        large = load_recipe(f"imagenet-spikingresformer-{size}-t4-original")
        assert large.data.options["augment"]["rand"] == rand and large.neuron.surrogate == "arctan"
        assert large.paper is None

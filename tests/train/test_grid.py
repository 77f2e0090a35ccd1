"""A file with [grid] is many recipes: names, values, published numbers, one-line errors."""

import hashlib
import json
from collections import defaultdict

import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.train.recipe import PRIVATE, RecipeError, load_recipe, recipe_names
from steadyspike.train.recipe.recipe_catalogue import group_titles, packaged, recipe_root

GRID = """
base = "tiny"
about = "{neuron.text} at V = {v}"
shown = "figure {neuron.figure}"

[grid]
name = "{neuron}-v{v}"
v = [0.5, 1.0]
neuron = [
    { name = "plif", text = "PLIF", figure = 2 },
    { name = "lif", text = "LIF", figure = 3, set.neuron.init = "zero" },
]

[neuron]
name = "{neuron}"
threshold = "{v}"

[grid.paper]
where = "table 9"
values = { "lif-v0.5" = 70.0 }

[grid.only."plif-v1.0"]
schedule.epochs = 7
"""


def write(folder, text=GRID, name="grid.toml"):
    (folder / name).write_text(text)
    return folder / name


def test_every_combination_is_a_recipe(tmp_path):
    path = write(tmp_path)
    recipe = load_recipe(f"{path}:lif-v0.5")
    assert (recipe.neuron.name, recipe.neuron.threshold, recipe.neuron.init) == ("lif", 0.5, "zero")
    assert recipe.about == "LIF at V = 0.5" and recipe.shown == "figure 3"
    assert (recipe.paper.value, recipe.paper.where) == (70.0, "table 9")
    other = load_recipe(f"{path}:plif-v1.0", ["train.seed=3"])
    assert (other.neuron.init, other.neuron.threshold, other.paper) == (None, 1.0, None)
    assert (other.schedule.epochs, other.train.seed) == (7, 3)
    assert load_recipe(f"{path}:plif-v0.5").schedule.epochs == 3


def test_a_recipe_can_build_on_one_of_a_grid(tmp_path):
    write(tmp_path)
    child = write(tmp_path, 'base = "grid.toml:plif-v1.0"\n[data]\ntimesteps = 5\n', "child.toml")
    recipe = load_recipe(child)
    assert (recipe.neuron.name, recipe.schedule.epochs, recipe.data.timesteps, recipe.shown) == ("plif", 7, 5, "")
    packaged_one = write(tmp_path, 'base = "frozen-as-hard-v0.1"\n', "other.toml")
    assert load_recipe(packaged_one).neuron.threshold == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("", ""), "grid.toml:all` trains all of it; or choose one of its recipes, such as"),
        (('name = "{neuron}-v{v}"', 'name = "x-{v}"'), "gives 'x-0.5' twice; name every axis in it"),
        (('"{v}"', '"{w}"'), "{w} is not in [grid]; it has the axes v, neuron"),
        (("{neuron.text}", "{neuron.word}"), "{neuron.word} is not in [grid]"),
        (("v = [0.5, 1.0]", "v = 0.5"), "grid.v = 0.5 is not valid; it must be a list of values or tables"),
        (('name = "lif", ', ""), "every table of grid.neuron needs a name"),
        (('"lif-v0.5" = 70', '"lif-v3" = 70'), "[grid] has no recipe 'lif-v3'; it has plif-v0.5"),
        (('name = "{neuron}-v{v}"', ""), "[grid] needs a name, such as name = 'run-{axis}'"),
    ],
)
def test_errors_are_one_line(tmp_path, change, message):
    path = write(tmp_path, GRID.replace(*change))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_with_one_recipe_has_no_names_inside(tmp_path):
    path = write(tmp_path, 'base = "tiny"', "one.toml")
    with pytest.raises(RecipeError, match="contains one recipe: leave out ':x'"):
        load_recipe(f"{path}:x")


def configuration(name):
    recipe = load_recipe(name).model_dump(exclude=set(PRIVATE), exclude_defaults=True)
    return json.dumps(recipe, sort_keys=True)


def test_the_packaged_grids_are_what_they_were_as_single_files():
    """The hash was taken from 170 files, one per recipe, which the grids replaced."""
    old = ("frozen", "sg-", "sparsity")
    names = sorted(name for name, source in packaged().items() if source.in_grid and name.startswith(old))
    assert len(names) == 170
    assert names[0] == "frozen-as-hard-v0.1" and names[-1] == "sparsity-trained-w1.0"
    text = "".join(f"{name} {configuration(name)}\n" for name in names)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "5f82c7db5e0907d97e6ef63ad16c0922c4d3549d382ac99ba475116a5ccb7801"
    )


def test_a_paper_table_has_a_number_or_a_verdict():
    with_paper = [recipe.paper for name in recipe_names() if (recipe := load_recipe(name)).paper is not None]
    assert all(paper.value is not None or paper.verdict for paper in with_paper) and len(with_paper) > 90
    with pytest.raises(RecipeError, match=r"needs paper\.value or paper\.verdict"):
        load_recipe("tiny", ['paper.where="x"'])


def test_no_two_recipes_are_one_configuration_under_two_published_numbers():
    """Except the paper's ImageNet row that is the same training read after fewer steps, and the demo's baseline, which
    the comparison of gradients trains with three seeds."""
    names = defaultdict(list)
    for name in recipe_names():
        names[configuration(name)].append(name)
    shared = [["demo-baseline", "proof-digits-as"], ["imagenet-resnet34-t4", "imagenet-resnet34-t6"]]
    assert [same for same in names.values() if len(same) > 1] == shared


def test_every_group_has_a_title():
    folders = {path.parent.name for path in recipe_root().rglob("*.toml")}
    assert folders == set(group_titles())


def test_a_grid_of_ones_own_is_listed_and_trained_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GRID.replace("[0.5, 1.0]", "[0.5]").replace("[grid.only", "[unused").split("[unused")[0])
    listed = CliRunner().invoke(app, ["recipes", "grid.toml"])
    assert listed.exit_code == 0 and "grid.toml:lif-v0.5" in listed.output and "grid.toml:all" not in listed.output
    assert CliRunner().invoke(app, ["recipes", "gone.toml"]).exit_code == 1
    done = CliRunner().invoke(app, ["train", "grid.toml:all", "--set", "schedule.epochs=1", "--out", "runs"])
    assert done.exit_code == 0 and "recipe 2 of 2: grid.toml:lif-v0.5" in done.output, done.output
    results = [json.loads((tmp_path / "runs" / name / "result.json").read_text()) for name in ("plif-v0.5", "lif-v0.5")]
    assert [result["status"] for result in results] == ["finished", "finished"]

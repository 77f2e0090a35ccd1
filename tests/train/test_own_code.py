"""A network and a data set of the user's own, by name in a recipe: examples/own, and what is refused."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import steadyspike as ss
from steadyspike.cli import app
from steadyspike.train.build.data import load_data
from steadyspike.train.build.dry_run import check_recipe, dry_run
from steadyspike.train.build.own_code import find_own
from steadyspike.train.recipe import RecipeError, load_recipe

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The example's files in the working directory, and none of its modules loaded before or after."""
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def test_the_example_trains_is_evaluated_and_loaded(here):
    result = CliRunner().invoke(app, ["train", "my_run.toml", "--out", "run"])
    assert result.exit_code == 0 and "my_net:Net: 5,548 parameters" in result.output, result.output
    assert "norm tdbn" not in result.output  # the recipe's norm, which this network does not take
    assert "make_data: 2 classes, 1 x 12 x 12, 360 train, 40 validation, 100 test" in result.output
    again = CliRunner().invoke(app, ["evaluate", "run"])
    assert again.exit_code == 0 and "equal to what the run logged" in again.output, again.output
    run = ss.load_run("run")
    assert isinstance(run.model.fire1, ss.PLIF) and not run.model.training
    x, y = next(iter(run.data.eval_loader("test", 100)))
    with torch.no_grad():
        accuracy = 100 * float((run.model(x).mean(0).argmax(-1) == y).float().mean())
    assert accuracy == pytest.approx(run.result["test"]["accuracy"][-1], abs=1e-4)


def test_doctor_tries_it(here):
    result = CliRunner().invoke(app, ["doctor", "--recipe", "my_run.toml"])
    assert result.exit_code == 0, result.output
    assert dry_run(load_recipe("my_run.toml")).parameters == 5548


def test_one_data_set_is_split_and_a_bundle_is_taken_as_it_is(here):
    (here / "more.py").write_text(
        "import my_data\n"
        "from steadyspike.data import from_dataset\n"
        "def one(): return my_data.make_data(100)[0]\n"
        "def bundle(validation): return from_dataset(*my_data.make_data(80), name='mine', validation=validation)\n"
        "def fixed(): return from_dataset(*my_data.make_data(80))\n"
    )
    table = load_recipe("my_run.toml", ["data.name=more:one", "data.options={}"]).data
    assert load_data(table.model_copy(update={"options": {}, "split": "random:3"})).split.name.startswith("random:3")
    bundle = load_data(table.model_copy(update={"name": "more:bundle", "options": {}, "validation": "none"}))
    assert (bundle.name, bundle.selection_part) == ("mine", None)
    with pytest.raises(RecipeError, match=r"data\.validation would have no effect: more:fixed takes no argument"):
        load_data(table.model_copy(update={"name": "more:fixed", "options": {}, "validation": "none"}))


def test_event_recordings_of_ones_own_train(here):
    (here / "events.py").write_text(
        "import numpy as np\n"
        "KIND = [('x', 'i2'), ('y', 'i2'), ('t', 'i8'), ('p', 'i1')]\n"
        "class Recordings(list):\n"
        "    sensor_size = (12, 12, 2)\n"
        "def make():\n"
        "    side = lambda label, i: [(6 * label + (7 * k + i) % 6, k % 12, k, k % 2) for k in range(60)]\n"
        "    return Recordings((np.array(side(i % 2, i), KIND), i % 2) for i in range(60))\n"
    )
    (here / "events.toml").write_text('base = "tiny"\nabout = "own events"\n[data]\nname = "events:make"\n')
    settings = ["--set", "data.timesteps=3", "--set", "data.train_samples=40", "--set", "data.batch_size=20"]
    result = CliRunner().invoke(app, ["train", "events.toml", "--out", "run", *settings])
    assert result.exit_code == 0 and "make: 2 classes, T=3, 2 x 12 x 12" in result.output, result.output
    x, _ = next(iter(ss.load_run("run").data.eval_loader("test", 4)))
    assert x.shape[:3] == (3, 4, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.name=os:system"], "there is no module os in the working directory or on PYTHONPATH"),
        (["model.name=torch.nn:Linear"], "there is no module torch in the working directory"),
        (["model.name=my_net:Nett"], "my_net has no class or function Nett"),
        (["model.name=my_net.deep:Net"], "model.name = 'my_net.deep:Net'"),
        (["model.name=my net:Net"], "it must be 'package.module:Name'"),
        (["model.name=my_net.py:Net"], "leave out .py and write my_net:Net"),
        (["model.options={hiden = 3}"], "unknown key model.options.hiden (did you mean hidden?)"),
        (["model.options={hidden = 'x'}"], "model.options.hidden = 'x' is not valid; it must be a whole number"),
        (["model.options={num_classes = 3}"], "model.options.num_classes cannot be set"),
        (["norm.name=tebn"], "[norm] would have no effect: my_net:Net takes no argument 'norm'"),
        (["model.width=0.5"], "model.width would have no effect"),
        (["data.options={colour = true}"], "unknown key data.options.colour"),
        (["data.size=8"], "data.size would have no effect: my_data:make_data takes no argument 'size'"),
        (["neuron.name=rate", "loss.name=tet"], "this combination cannot work"),
    ],
)
def test_mistakes_are_one_line(here, settings, message):
    recipe = load_recipe("my_run.toml", settings)

    def ask():
        check_recipe(recipe)
        dry_run(recipe)

    with pytest.raises(RecipeError) as caught:
        ask()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_network_of_another_output_is_refused_with_both_shapes(here):
    text = (here / "my_net.py").read_text().replace(".mean((-1, -2)))", ".mean((-1, -2))).mean(0)")
    (here / "flat.py").write_text(text)
    result = CliRunner().invoke(app, ["train", "my_run.toml", "--set", "model.name=flat:Net", "--out", "run"])
    assert result.exit_code == 1
    assert "forward returns [2, 2] for a batch of 2; [T, B, classes] = [3, 2, 2] is needed" in result.output


@pytest.mark.parametrize("returned", ["samples()", "([(0, 0)] * 9, samples())", "None"])
def test_a_function_that_returns_no_data_set_is_refused_in_one_line(here, returned):
    text = f"def samples():\n    yield 1\n\n\ndef make():\n    return {returned}\n"
    (here / "stream.py").write_text(text)
    settings = ["--set", "data.name=stream:make", "--set", "data.options={}"]
    result = CliRunner().invoke(app, ["train", "my_run.toml", *settings, "--out", "run"])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    assert "data.name = 'stream:make': a data set has __len__ and __getitem__; it returned" in result.output


def test_a_name_that_is_taken_by_an_installed_package_is_refused(here):
    (here / "rich.py").write_text("def Net(): ...\n")
    with pytest.raises(RecipeError, match=r"a module rich from .* is in use; rename yours"):
        dry_run(load_recipe("my_run.toml", ["model.name=rich:Net", "model.options={}"]))


def test_a_run_folder_brings_no_code(here, monkeypatch):
    """The module lies in the run folder only: loading the run does not import it."""
    assert CliRunner().invoke(app, ["train", "my_run.toml", "--out", "run"]).exit_code == 0
    (here / "my_net.py").rename(here / "run" / "my_net.py")
    del sys.modules["my_net"]
    with pytest.raises(RecipeError, match="there is no module my_net in the working directory"):
        ss.load_run("run")


def test_no_code_is_imported_while_the_working_directory_is_in_a_run_folder(here, monkeypatch):
    """`cd RUN && steadyspike evaluate .` with a module of the recipe's name in the run."""
    assert CliRunner().invoke(app, ["train", "my_run.toml", "--out", "run"]).exit_code == 0
    for name in ("my_net", "my_data"):
        (here / f"{name}.py").rename(here / "run" / f"{name}.py")
        del sys.modules[name]
    (here / "run" / "sub").mkdir()
    for location in ("run", "run/sub"):
        monkeypatch.chdir(here / location)
        for path in ("", str(here / "run")):
            monkeypatch.setenv("PYTHONPATH", path)
            result = CliRunner().invoke(app, ["evaluate", str(here / "run")])
            text = " ".join(result.output.split())
            assert result.exit_code == 1 and "no code is imported from the run folder" in text, text
    assert "my_net" not in sys.modules and "my_data" not in sys.modules


@pytest.mark.parametrize("name", ["run.evil:Net", "run.sub.evil:Net", "folder.run.evil:Net", "package.linked.evil:Net"])
def test_a_run_folder_inside_the_working_directory_is_not_a_package(here, name):
    """Python takes every folder for a package: `run.evil` is run/evil.py."""
    for run in ("run", "folder/run"):
        (here / run / "sub").mkdir(parents=True)
        for file in ("recipe.toml", "weights.safetensors"):
            (here / run / file).touch()
        for file in ("evil.py", "sub/evil.py"):
            (here / run / file).write_text("raise SystemExit('imported')\n")
    (here / "package").mkdir()
    (here / "package" / "__init__.py").touch()
    (here / "package" / "linked").symlink_to(here / "run")
    with pytest.raises(RecipeError, match=r"no code is imported from the run folder .*run"):
        find_own(name, "model.name")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("this", "part of Python"),
        ("antigravity", "part of Python"),
        ("steadyspike", "installed package or a part of Python"),
        ("rich", "a module rich from .* is in use; rename yours"),
    ],
)
def test_names_of_other_code_are_refused_before_they_are_imported(here, module, message):
    (here / f"{module}.py").write_text("raise SystemExit('imported')\n")
    loaded = set(sys.modules)
    with pytest.raises(RecipeError, match=message):
        find_own(f"{module}:Net", "model.name")
    assert not {"this", "antigravity"} & (set(sys.modules) - loaded)


def test_installed_packages_on_pythonpath_are_refused_before_they_are_imported(here, monkeypatch):
    packages = sysconfig.get_path("purelib")
    assert (Path(packages) / "torchgen").exists()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([packages, sysconfig.get_path("stdlib")]))
    for name in ("torchgen.gen:main", "test.support:run"):
        loaded = set(sys.modules)
        with pytest.raises(RecipeError, match=r"is an installed package|part of Python"):
            find_own(name, "model.name")
        assert set(sys.modules) == loaded


@pytest.mark.parametrize("line", ["from os import system as Net", "from torch.nn import Linear as Net"])
def test_what_a_module_only_imports_is_refused(here, line):
    (here / "mine.py").write_text(line + "\n")
    with pytest.raises(RecipeError, match=r"mine only imports Net from (posix|os|nt|torch\.nn\.modules\.linear)"):
        find_own("mine:Net", "model.name")
    (here / "parts.py").write_text("def Net(): return 3\n")
    (here / "other.py").write_text("from parts import Net\n")
    assert find_own("other:Net", "model.name")() == 3


def test_options_without_annotation_have_the_type_of_their_default(here):
    (here / "loose.py").write_text(
        "from my_net import Net as Whole\n"
        "def Net(in_channels, num_classes, timesteps, neuron, hidden=24, label='a', sizes=(1,), extra={}, free=None):\n"
        "    return Whole(in_channels=in_channels, num_classes=num_classes, timesteps=timesteps, neuron=neuron,"
        " hidden=hidden)\n"
    )
    settings = ["model.name=loose:Net", "data.options={samples = 40}"]
    options = "{hidden = 8, label = 'b', sizes = [3], extra = {a = 1}, free = 2}"
    assert dry_run(load_recipe("my_run.toml", [*settings, f"model.options={options}"])).parameters > 0
    with pytest.raises(RecipeError, match=r"hidden = 2.5 is not valid; it must be a whole number"):
        dry_run(load_recipe("my_run.toml", [*settings, "model.options={hidden = 2.5}"]))
    with pytest.raises(RecipeError, match=r"label = 3 is not valid; it must be a text"):
        dry_run(load_recipe("my_run.toml", [*settings, "model.options={label = 3}"]))

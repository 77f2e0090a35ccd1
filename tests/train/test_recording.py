"""--record: a run's numbers go into the results of the recipe that it ran, and of no other."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import steadyspike as ss
from steadyspike.cli import app
from steadyspike.results.measured import recorded
from steadyspike.results.recording import record
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import RecipeError, find_recipe

OWN = 'base = "tiny"\nabout = "mine" # with a comment\n\n[schedule]\nepochs = 1\n'
GRID = 'base = "tiny"\n[grid]\nname = "mine-{e}"\ne = [1, 2]\n[schedule]\nepochs = "{e}"\n'


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def recorded_of(recipe):
    return recorded(find_recipe(recipe))


def test_train_and_evaluate_record_in_a_file_beside_the_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    first = call("train", path, "--out", tmp_path / "a", "--record")
    assert first.exit_code == 0 and "recorded" in first.output, first.output
    assert call("train", path, "--out", tmp_path / "b", "--set", "train.seed=4").exit_code == 0
    again = call("evaluate", tmp_path / "b", "--record", "--recipe", path)
    assert again.exit_code == 0 and "recorded" in again.output, again.output
    assert path.read_text() == OWN
    entries = recorded_of(path)
    assert [entry.seed for entry in entries] == [0, 4]
    for folder, measured in zip("ab", entries, strict=True):
        result = json.loads((tmp_path / folder / "result.json").read_text())
        assert measured.value == round(result["test"]["accuracy"][-1], 2)
        assert measured.commit and "cores" in measured.hardware and len(measured.date) == 10
        assert measured.software.startswith("torch ")
        assert measured.numbers["after step 1"] == round(result["test"]["accuracy"][0], 2)
    twice = call("evaluate", tmp_path / "b", "--record", "--recipe", path)
    assert twice.exit_code == 1 and "is in mine.measured.json already" in twice.output


def test_one_recipe_of_a_grid(tmp_path, finished):
    path = tmp_path / "grid.toml"
    path.write_text(GRID + '[grid.only."mine-2"]\nnote = "x"\n')
    name = f"{path}:mine-2"
    with pytest.raises(RunError, match=r"is not a run of mine-2: schedule\.epochs is 3, in the recipe it is 2"):
        record(finished, name)
    path.write_text(GRID.replace("[1, 2]", "[1, 3]"))
    record(finished, f"{path}:mine-3")
    assert len(recorded_of(f"{path}:mine-3")) == 1 and not recorded_of(f"{path}:mine-1")


def test_further_numbers_join_the_entry_of_the_same_run(tmp_path, finished):
    path = tmp_path / "mine.toml"
    path.write_text('base = "tiny"\n')
    record(finished, str(path))
    record(finished, str(path), {"shift": 0.25})
    (entry,) = recorded_of(path)
    assert entry.numbers["shift"] == 0.25 and "after step 1" in entry.numbers
    with pytest.raises(RunError, match="already"):
        record(finished, str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "is not JSON"), ("{}", "is not a list of results"), ('[{"recipe": "mine"}]', r"measured\.json: ")],
)
def test_a_damaged_file_of_results_is_one_line(tmp_path, finished, text, message):
    path = tmp_path / "mine.toml"
    path.write_text('base = "tiny"\n')
    path.with_name("mine.measured.json").write_text(text)
    with pytest.raises(RecipeError, match=message):
        record(finished, str(path))
    assert path.with_name("mine.measured.json").read_text() == text


def test_the_packaged_recipe_of_a_run_is_found(finished, monkeypatch):
    written = {}
    monkeypatch.setattr("steadyspike.results.recording.write_atomically", lambda path, write: written.update(p=path))
    entry = record(finished)
    assert entry.recipe == "tiny" and written["p"].parts[-2:] == ("results", "recipes.json") and entry.seed == 0


def test_other_runs_are_refused(tmp_path, finished):
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(finished.root, folder.root)
    recipe = folder.read_recipe()
    longer = recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update={"epochs": 77})})
    folder.write_recipe(longer)
    with pytest.raises(
        RecipeError, match=r"no packaged recipe has the configuration of .* name the recipe with --recipe"
    ):
        record(folder)
    with pytest.raises(RunError, match=r"is not a run of tiny: schedule\.epochs is 77, in the recipe it is 3"):
        record(folder, "tiny")


def test_a_run_is_loaded_with_the_weights_of_its_result(finished):
    run = ss.load_run(finished.root)
    assert run.recipe == finished.read_recipe() and not run.model.training and "tiny" in repr(run)
    x, y = next(iter(run.data.eval_loader("test", 1000)))
    hits = run.model(x).mean(0).argmax(-1) == y
    assert 100 * float(hits.double().mean()) == pytest.approx(run.result["test"]["accuracy"][-1])
    with pytest.raises(RunError, match=r"is not a run folder"):
        ss.load_run(finished.root.parent / "nothing")

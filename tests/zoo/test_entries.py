"""The networks that come with the library: what is listed comes out again, and commands take their names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import steadyspike as ss
from steadyspike.cli import app
from steadyspike.data.errors import DataError
from steadyspike.train import RunError, evaluate_run, load_recipe
from steadyspike.train.files.folder import NETWORKS, RunFolder, packaged_names, run_folder
from steadyspike.train.run.training import train
from steadyspike.zoo.adding import ALLOWED, LARGEST, add, points
from steadyspike.zoo.card import card_of_run
from steadyspike.zoo.description import read_description

ALL = 20_000_000  # bytes of all entries


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def command(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_there_are_networks_and_they_are_small() -> None:
    assert "digits-cnn7" in packaged_names() == ss.zoo.names()
    sizes = {path: path.stat().st_size for path in NETWORKS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= ALL
    assert all(size <= LARGEST for size in sizes.values())
    for name in packaged_names():
        text = "".join(path.read_text() for path in (NETWORKS / name).iterdir() if path.suffix != ".safetensors")
        assert "/home/" not in text and "/tmp/" not in text and "/work" not in text, "no path of a machine"


@pytest.mark.parametrize("name", packaged_names())
def test_a_network_loads_with_all_it_needs(name: str) -> None:
    net = ss.load(name)
    given = net.description.input
    assert not net.model.training and len(net.classes) == net.description.num_classes
    assert net.card.startswith(f"# {name}\n") and "## Limits" in net.card
    assert net.card == card_of_run(NETWORKS / name, name), "the card is generated from the entry's files"
    shape = (1, given.channels, *given.size)
    with torch.no_grad():
        out = net.model(torch.rand(shape if given.timesteps is None else (given.timesteps, *shape)))
    if net.recipe.detection is None:
        assert out.shape == (net.timesteps, 1, len(net.classes))
    numbers, result = net.description.numbers, RunFolder(NETWORKS / name).read_json("result.json")
    assert numbers is not None and abs(points(result["test"]) - numbers.before) <= ALLOWED


@pytest.mark.parametrize("name", packaged_names())
def test_the_listed_score_comes_out_again(name: str) -> None:
    """To the last digit that is listed, wherever the data set is."""
    embedded = read_description(NETWORKS / name).input.data == "digits"
    if not embedded and "STEADYSPIKE_DATA" not in os.environ:
        pytest.skip("needs STEADYSPIKE_DATA")
    location = None if embedded else Path(os.environ["STEADYSPIKE_DATA"])
    try:
        actual = evaluate_run(run_folder(name), location, download=False)
    except DataError as error:
        pytest.skip(str(error))
    assert actual.same_split and (actual.reproduces or actual.rounds)


def test_commands_take_a_name_like_a_run(tmp_path: Path) -> None:
    code, text = command("evaluate", "digits-cnn7")
    assert code == 0 and "equal to what the run logged" in text
    assert command("fold", "digits-cnn7", "--samples", 32)[0] == 0
    assert command("energy", "digits-cnn7", "--samples", 16)[0] == 0
    assert command("analyse", "digits-cnn7", "--samples", 16)[0] == 0
    assert command("show", "digits-cnn7")[0] == 0
    code, text = command("report", "digits-cnn7", "--out", tmp_path / "page.html")
    assert code == 0 and (tmp_path / "page.html").stat().st_size > 10_000
    code, text = command("evaluate", "digits-cnn8")
    assert code == 1 and "did you mean digits-cnn7?" in text


@pytest.mark.parametrize("name", packaged_names())
def test_every_network_is_shown(name: str) -> None:
    """Also a detector, which has a table that classifiers do not have."""
    code, text = command("show", name)
    assert code == 0, text


def test_export_and_predict_take_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a short name: the table breaks long ones
    image = pytest.importorskip("PIL.Image")
    pixels = ss.data.load("digits", validation="none").dataset.source.data[3, 0]  # type: ignore[attr-defined]
    image.fromarray(pixels.numpy()).save(tmp_path / "digit.png")
    code, text = command("predict", "digits-cnn7", "digit.png")
    assert code == 0 and "digit.png" in text
    (name, share), *_ = ss.load("digits-cnn7").predict(tmp_path / "digit.png")
    assert name == str(int(ss.data.load("digits").dataset.labels[3])) and share > 0.5
    assert (
        command("export", "digits-cnn7", "--to", "int8", "--samples", 16, "--out", tmp_path / "n.safetensors")[0] == 0
    )


def test_without_the_data_set_fold_export_and_predict_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is empty, and nothing is downloaded."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("steadyspike.data.data_folders.fetch", lambda *args, **options: asked.append(args))
    image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    code, text = command("predict", "cifar10-resnet19", "red.png")
    assert code == 0 and "red.png" in text
    code, text = command("fold", "nmnist-cnn7")
    assert code == 0 and "float64" in text and "proved on noise" in text
    code, text = command("export", "nmnist-cnn7", "--to", "page", "--out", tmp_path / "page.html")
    assert code == 0 and "without test samples" in text and (tmp_path / "page.html").stat().st_size > 100_000
    assert command("export", "nmnist-cnn7", "--to", "int8", "--out", tmp_path / "n.safetensors")[0] == 0
    assert asked == []


def test_the_list_and_the_card() -> None:
    code, text = command("zoo")
    assert code == 0 and all(name in text for name in packaged_names()) and "firing rate" in text
    code, text = command("zoo", "digits-cnn7")
    assert code == 0 and text.startswith("# digits-cnn7")
    assert command("zoo", "digits-cnn8")[0] == 1


def test_a_run_without_a_card_is_an_error(run: Path) -> None:
    code, text = command("zoo", run)
    assert code == 1 and "has no card" in text


def test_what_is_packaged_is_not_written_to() -> None:
    before = {path: path.stat().st_mtime_ns for path in NETWORKS.rglob("*")}
    copy = run_folder("digits-cnn7")
    assert command("fold", "digits-cnn7", "--samples", 8)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in NETWORKS.rglob("*")} == before
    (copy / "result.json").write_text("{}")
    assert run_folder("digits-cnn7") == copy and RunFolder(copy).intact("result.json"), "a damaged copy is made again"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run") / "tiny"
    train(load_recipe("tiny", ["schedule.epochs=1", "data.train_samples=64"]), RunFolder(root))
    return root


def test_a_run_becomes_an_entry(run: Path, tmp_path: Path) -> None:
    code, text = command("zoo", "mine", "--add", run, "--to", tmp_path)
    assert code == 0, text
    described, result = read_description(tmp_path / "mine"), RunFolder(tmp_path / "mine").read_json("result.json")
    assert described.numbers is not None and 0 <= described.numbers.firing_rate <= 1 and described.numbers.ms > 0
    assert described.rounding == "float16" or result["test"] == RunFolder(run).read_json("result.json")["test"]
    assert evaluate_run(tmp_path / "mine").reproduces is True
    half = RunFolder(tmp_path / "mine").weights.stat().st_size
    assert half < 0.8 * RunFolder(run).weights.stat().st_size or described.rounding == "none"
    assert command("zoo", "mine", "--add", run, "--to", tmp_path)[0] == 1, "an entry is not overwritten"
    assert "`" in ss.load(tmp_path / "mine").card and list(tmp_path.glob("*partial*")) == []


def test_a_run_loads_and_is_shared(run: Path, tmp_path: Path) -> None:
    net = ss.load(run)
    assert net.classes == tuple("0123456789") and net.timesteps == net.recipe.data.timesteps
    folder = ss.save_pretrained(ss.load_run(run), tmp_path / "shared", about="a test")
    again = ss.load(folder)
    x = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(net.model(x), again.model(x))
    assert "a test" in again.card and evaluate_run(folder).reproduces is True
    assert str(run) not in (folder / "run.json").read_text(), "no path of this machine is shared"


def test_what_did_not_finish_is_no_entry(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    folder = RunFolder(copy)
    folder.write_json("result.json", {**folder.read_json("result.json"), "status": "diverged", "message": "nan"})
    with pytest.raises(RunError, match="did not finish"):
        add(copy, tmp_path / "entry")

"""The commands for a trained run: fold, energy, export, predict, as a user types them."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.deploy import load
from tests.deploy.c_program import STRICT, CProgram, compiler, differing, images_of

pytest.importorskip("pydantic")
load_run = pytest.importorskip("steadyspike.train.run.loading").load_run


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join((result.output or "").split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tiny"
    code, text = call("train", "demo", "--set", "schedule.epochs=2", "--out", folder)
    assert code == 0, text
    return folder


def test_fold_keeps_the_accuracy(run):
    code, text = call("fold", run, "--float64")
    assert code == 0 and "float64: 0.00e+00 of the spikes differ" in text and "binary spikes" in text
    exact = re.search(r"in float64: model (\S+) %, folded (\S+) %; 0 of 359 samples decided differently", text)
    assert exact is not None and exact[1] == exact[2], text
    assert "never fired" not in text, "a silent network proves nothing"
    assert all(node.options["emit"] == "spikes" for node in load(run / "folded.safetensors").graph.neurons())


def test_energy_counts(run):
    code, text = call("energy", run, "--samples", 20)
    assert code == 0 and "total per sample" in text and "45nm-fp32" in text and "20 test samples" in text


def test_export_to_nir_and_integers(run):
    pytest.importorskip("nir")
    code, text = call("export", run, "--to", "int8", "--samples", 20)
    assert code == 0 and "Loihi 2" in text and "Speck" in text and (run / "int8.safetensors").exists()
    code, text = call("export", run, "--to", "nir")
    assert code == 0 and (run / "network.nir").exists()
    code, text = call("export", run, "--to", "pdf")
    assert code == 2 and "nir, onnx, int8, c, page" in text


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_export_to_c_has_the_spikes_of_the_whole_test_set(run, tmp_path, precision):
    out = tmp_path / "c"
    code, text = call("export", run, "--to", "c", "--out", out, "--precision", precision, "--main")
    assert code == 0 and "RAM" in text and "flash" in text and (out / "README.md").exists()
    subprocess.run([compiler(), *STRICT, "-O1", str(out / "cnn7.c"), "-o", str(tmp_path / "a.out")], check=True)
    network, x = load(run / "folded.safetensors"), images_of(load_run(run))
    c = CProgram(network, tmp_path, precision == "int8")
    assert c.export.ram <= 64 * 1024 and len(x) == 359
    wrong, fired, _ = differing(c, x, 4, precision == "int8")
    assert fired > 0 and wrong <= (0 if precision == "int8" else 1e-4 * fired)
    code, text = call("export", run, "--to", "c", "--precision", "int4")
    assert code == 2 and "int8, float32" in text


def test_export_to_a_page(run, tmp_path):
    code, text = call("export", run, "--to", "page", "--out", tmp_path / "network.html")
    assert code == 0 and "open it in a browser" in text
    assert (tmp_path / "network.html").stat().st_size < 2e6
    assert call("export", run / "folded.safetensors", "--to", "page", "--out", tmp_path / "b.html")[0] == 0


def test_predict_images(run, tmp_path):
    from PIL import Image

    from steadyspike.train.run.loading import load_run

    size = load_run(run).data.dataset.size
    pixels = (np.random.default_rng(0).random(size) * 255).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[:5, :7]).save(tmp_path / "b.png")
    code, text = call("predict", run, tmp_path / "a.png", "--top", 3, "--confidence", 0.5)
    assert code == 0 and f"of {load(run / 'folded.safetensors').graph.timesteps}" in text
    code, text = call("predict", run, tmp_path / "b.png")
    assert code == 1 and "--resize" in text and "7 x 5" in text
    assert call("predict", run / "folded.safetensors", tmp_path / "b.png", "--resize")[0] == 0


@pytest.mark.parametrize(
    "name", ["a[/b].png", "\x1b[31mred.png", "\u202egnp.exe.png", "[bold].png", ":smile:.png", "a\nb.png"]
)
def test_predict_shows_names_and_obeys_none(run, tmp_path, name):
    from PIL import Image

    from steadyspike.train.run.loading import load_run

    size = load_run(run).data.dataset.size
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.zeros(size, np.uint8)).save(path)
    code, text = call("predict", run, path)
    shown = "".join(c for c in text.split("class")[1] if c not in " │┃┡╇━┩┓┏├─")
    assert code == 0 and name.encode("unicode_escape").decode() in shown
    assert "\x1b" not in text and "\u202e" not in text
    code, text = call("predict", run, tmp_path / "gone" / name)
    assert code == 1 and "\x1b" not in text and "\u202e" not in text


@pytest.fixture(scope="module")
def event_run(tmp_path_factory):
    """A run on simulated event recordings, and one of its recordings."""
    folder = tmp_path_factory.mktemp("events")
    settings = ("data.name=digits-events", "data.timesteps=3", "schedule.epochs=1", "data.batch_size=32")
    words = [word for setting in settings for word in ("--set", setting)]
    code, text = call("train", "tiny", *words, "--data-dir", folder, "--out", folder / "run")
    assert code == 0, text
    return folder / "run", sorted(folder.rglob("*.bin"))[:2]


STRANGE = (None, 5, -1, 0.5, "x\x1b[31m", [], [1, 2], {}, {"size": 5}, {"timesteps": 10**9}, ["[/b]"] * 50, True, 10**9)


def _forged_facts(facts):
    """Every fact of a folded file replaced by something else, or left out."""
    for key in facts:
        yield key, {name: value for name, value in facts.items() if name != key}
        for strange in STRANGE:
            yield key, {**facts, key: strange}


def test_forged_facts_are_one_line_or_read(run, event_run, tmp_path):
    """A checksum can be forged: what stands between such a file and `predict` is the check of its facts."""
    from PIL import Image
    from torture.forge import read_parts, write_forged

    from steadyspike.commands.shared.deployed import check_facts
    from steadyspike.data.errors import DataError
    from steadyspike.data.input_files import read_input
    from steadyspike.deploy import CannotFold, DamagedFile

    folded, recordings = event_run
    assert call("fold", folded)[0] == 0 and call("fold", run)[0] == 0
    image, forged = tmp_path / "a.png", tmp_path / "forged.safetensors"
    Image.fromarray(np.zeros(load_run(run).data.dataset.size, np.uint8)).save(image)
    lines: list[str] = []
    for location, file in ((run, image), (folded, recordings[0])):
        network = load(location / "folded.safetensors")
        content, tensors = read_parts(location / "folded.safetensors")
        refused = set()
        for key, facts in _forged_facts(content["extra"]):
            try:
                check_facts(forged, facts, network)
                read_input(file, facts, resize=False)
            except (CannotFold, DamagedFile, DataError) as error:
                refused.add(key)
                lines.append(str(error))
        assert {"classes", "size", "channels", "timesteps", "mean", "std"} <= refused
    assert {"frames", "axes"} <= refused
    assert not any("\n" in line or "\x1b" in line for line in lines)
    del content["extra"]["mean"]
    write_forged(forged, content, tensors)
    code, text = call("predict", forged, recordings[0])
    assert code == 1 and "is damaged: it has no 'mean'" in text


def test_predict_event_recordings(event_run, tmp_path):
    run, recordings = event_run
    code, text = call("predict", run, *recordings)
    assert code == 0 and text.count("of 3") == 2
    code, text = call("energy", run / "folded.safetensors", *recordings)
    assert code == 0 and "2 files, 3 time steps" in text
    (tmp_path / "odd.bin").write_bytes(recordings[0].read_bytes()[:-2])
    code, text = call("predict", run, tmp_path / "odd.bin")
    assert code == 1 and "odd.bin" in text and "Traceback" not in text
    (tmp_path / "a.png").write_bytes(b"no image")
    code, text = call("predict", run, tmp_path / "a.png")
    assert code == 1 and "is not an event file" in text


def test_energy_of_a_folded_file(run, tmp_path):
    import shutil

    folded_of(run)
    code, text = call("energy", run / "folded.safetensors", "--samples", 8)
    assert code == 0 and "8 test samples" in text
    alone = shutil.copy(run / "folded.safetensors", tmp_path / "alone.safetensors")
    code, text = call("energy", alone)
    assert code == 1 and "add the names of input files" in text


@pytest.mark.parametrize("package", ["nir", "onnx", "safetensors"])
def test_a_missing_package_is_one_line(run, monkeypatch, package):
    import importlib.util

    folded_of(run)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else find(name, *a))
    code, text = call("export", run, "--to", "onnx" if package == "onnx" else "nir")
    assert code == 1 and text == f"error: this needs the package {package}: pip install 'steadyspike[export]'"


def test_what_is_wrong_is_one_line(run, tmp_path):
    code, text = call("predict", run, tmp_path / "none.png")
    assert code == 1 and "is not a file" in text
    (tmp_path / "cut.safetensors").write_bytes((run / "folded.safetensors").read_bytes()[:500])
    code, text = call("export", tmp_path / "cut.safetensors", "--to", "nir")
    assert code == 1 and "cut.safetensors" in text and "error:" in text
    assert call("fold", tmp_path)[0] == 1


def test_early_exit_is_a_table(run):
    code, text = call("evaluate", run, "--early-exit")
    assert code == 0 and "average steps" in text and "never" in text


def test_wrong_options_are_one_line(run, tmp_path):
    from steadyspike.deploy import save

    for words in (
        ("fold", run, "--mode", "none"), ("fold", run, "--samples", 0), ("energy", run, "--samples", 0),
        ("export", run, "--to", "nir", "--mode", "none"), ("export", run, "--to", "onnx", "--out", tmp_path / "no/a"),
        ("predict", run, "a.png", "--top", 0), ("predict", run, "a.png", "--confidence", 2),
    ):  # fmt: skip
        assert call(*words)[0] == 2, words
    network = folded_of(run)
    save(network, tmp_path / "bare.safetensors")
    code, text = call("predict", tmp_path / "bare.safetensors", tmp_path / "a.png")
    assert code == 1 and "has no information about classes" in text
    code, text = call("export", run, "--to", "int8", "--samples", 5, "--out", tmp_path / "mine.safetensors")
    assert code == 0 and (tmp_path / "mine.safetensors").exists()
    code, text = call("predict", tmp_path / "mine.safetensors", tmp_path / "a.png")
    assert code == 1 and "not of a folded network" in text


def test_a_run_that_was_trained_on_is_folded_again(run, tmp_path):
    import shutil

    from steadyspike.disk.checksum import file_sha256
    from steadyspike.train.files.folder import RunFolder
    from steadyspike.train.files.weights import NOTED, read_weights, save_weights
    from tests.report.made import rewritten

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    before = folded_of(copy)
    weights, about = read_weights(copy / "weights.safetensors")
    head = next(key for key in weights if weights[key].ndim == 2)
    weights[head] = weights[head] + 1
    save_weights(copy / "weights.safetensors", weights, about)
    rewritten(RunFolder(copy), "result.json", **{NOTED: file_sha256(copy / "weights.safetensors")})
    after = folded_of(copy)
    assert any(not bool((a == b).all()) for a, b in zip(before.buffers(), after.buffers()))


def folded_of(location):
    from steadyspike.commands.shared.deployed import folded

    return folded(location, None)[0]

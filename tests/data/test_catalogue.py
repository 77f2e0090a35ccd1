"""Loading by name, wrapping a user's data set, idx files, pictures and commands."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont
from typer.testing import CliRunner

import steadyspike.data as data
from steadyspike.commands.data import app
from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset_catalogue import expected_shape
from steadyspike.data.errors import DataError
from steadyspike.data.formats import idx
from steadyspike.data.sets import mnist
from steadyspike.data.show import contact_sheet, drawable, event_pixels, frame_pixels, image_pixels


def test_unknown_names_and_options_list_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set 'cifar11'; valid are digits, digits-events, cifar10"):
        data.load("cifar11")
    with pytest.raises(DataError, match="has no option 'canvass'; its options are: canvas, placement_seed, augment"):
        data.load("digits", cache_dir=tmp_path, canvass=20)
    with pytest.raises(DataError, match="options are: canvas, placement_seed, threshold, by, size, antialias, total"):
        data.load("digits-events", cache_dir=tmp_path, resize=20)
    with pytest.raises(DataError, match="options are: augment, mean, std"):
        data.load("mnist", tmp_path, size=32)
    with pytest.raises(DataError, match="valid are random:SEED"):
        data.load("digits", cache_dir=tmp_path, split="tebn")
    with pytest.raises(DataError, match="canvas must be a whole number of at least 12, not '16'"):
        data.load("digits", cache_dir=tmp_path, canvas="16")
    with pytest.raises(DataError, match="threshold must be positive"):
        data.load("digits-events", cache_dir=tmp_path, threshold=0.0)


def test_augmentation_and_normalisation_can_be_chosen(shared_cache: Path) -> None:
    plain = data.load("digits", cache_dir=shared_cache, augment="none", mean=[0.0], std=[1.0])
    assert plain.describe()["augment"].items() >= {"padding": 0, "flip": False}.items() and plain.describe()["std"] == [
        1.0
    ]
    x, _ = next(iter(plain.eval_loader("test", 50)))
    assert x.min() == 0 and x.max() <= 1
    padded = data.load("digits", cache_dir=shared_cache, augment={"padding": 3, "flip": False})
    assert padded.dataset.augment == Augment(3, False)
    bad_augments = ({"zoom": 3}, "standard", {"padding": -1}, {"flip": 1})
    for wrong in (*({"augment": bad} for bad in bad_augments), {"mean": [0.1, 0.2, 0.3]}, {"std": [0.0]}):
        with pytest.raises(DataError):
            data.load("digits", cache_dir=shared_cache, **wrong)
    with pytest.raises(DataError, match="'digits-events' takes no mean"):
        data.load("digits-events", cache_dir=shared_cache, mean=[0.1, 0.1])


@pytest.mark.parametrize("name", ["digits", "digits-events"])
@pytest.mark.parametrize("canvas", [None, 20])
def test_the_catalogue_states_the_shape_that_is_loaded(tmp_path: Path, name: str, canvas: int | None) -> None:
    options = {} if canvas is None else {"canvas": canvas}
    bundle = data.load(name, cache_dir=tmp_path, **options)
    assert expected_shape(name, canvas=canvas) == (bundle.num_classes, bundle.in_channels, bundle.shape)


def test_a_size_replaces_that_of_the_catalogue() -> None:
    assert expected_shape("CIFAR10-DVS") == (10, 2, (48, 48))
    assert expected_shape("dvs-cifar10", size=[32, 64]).size == (32, 64)
    assert expected_shape("imagenet", size=160) == (1000, 3, (160, 160))


def test_describe_is_plain_and_complete(shared_cache: Path) -> None:
    bundle = data.load("digits-events", cache_dir=shared_cache, validation="test")
    described = json.loads(json.dumps(bundle.describe()))
    assert described["split"]["selection"] == "test"
    assert described["frames"]["by"] == "number"
    assert bundle.selection_part == "test"
    assert described["split"]["parts"]["validation"]["samples"] == 0


def test_light_import() -> None:
    """The data layer imports and loads the digits without its optional packages; only the commands need typer."""
    code = (
        "import sys; sys.modules.update({n: None for n in ('PIL', 'sklearn', 'aedat', 'typer', 'pooch')});"
        "import steadyspike.data as d; d.names();"
        "from steadyspike.data import show, images\n"
        "print(len(d.load('digits', cache_dir=sys.argv[1]).train_loader(64)))"
    )
    out = subprocess.run([sys.executable, "-c", code, "."], capture_output=True, text=True, check=True)
    assert int(out.stdout) > 0


@pytest.fixture
def idx_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for stem, count in (("train", 40), ("t10k", 20)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28)).astype(np.uint8)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx.encode(images))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx.encode((np.arange(count) % 10).astype(np.uint8)))
    return tmp_path / "data"


def test_mnist_from_idx_files(idx_dir: Path) -> None:
    bundle = data.load("mnist", idx_dir, download=False)
    assert str(bundle).startswith("mnist: 10 classes, 1 x 28 x 28, 30 train, 10 validation, 20 test")
    assert next(iter(bundle.train_loader(4)))[0].shape == (4, 1, 28, 28)


def test_idx_files_with_something_wrong(idx_dir: Path) -> None:
    folder = idx_dir / "MNIST" / "raw"
    labels = folder / "t10k-labels-idx1-ubyte"
    good = labels.read_bytes()
    labels.write_bytes(good[:-1])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: has 27 bytes, but its header \(20,\) asks for 28"):
        data.load("mnist", idx_dir)
    labels.write_bytes(idx.encode(np.full(20, 11, np.uint8)))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: holds label 11"):
        data.load("mnist", idx_dir)
    labels.unlink()
    with pytest.raises(DataError, match=r"downloading is off; put t10k-labels-idx1-ubyte\.gz"):
        data.load("mnist", idx_dir, download=False)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(good))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: has md5 \w+ unpacked, but"):
        data.load("mnist", idx_dir)


def test_idx_archives_are_known_by_what_they_hold(idx_dir: Path) -> None:
    """Packed again, the same bytes have another gzip header: accepted. Other bytes are refused and left alone."""
    folder = idx_dir / "MNIST" / "raw"
    md5 = []
    for name in mnist.FILES:
        raw = (folder / name).read_bytes()
        md5.append(hashlib.md5(raw).hexdigest())
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(raw, compresslevel=1, mtime=12345))
    spec = replace(mnist.MNIST, md5=tuple(md5))
    location = DataFolders.of(idx_dir, None, download=False)
    assert len(mnist.load(location, spec).source) == 60
    path = folder / f"{mnist.FILES[1]}.gz"
    path.write_bytes(gzip.compress(idx.encode(np.zeros(40, np.uint8))))
    with pytest.raises(DataError, match=r"has md5 \w+ unpacked, but .* It was not changed") as caught:
        mnist.load(location, spec)
    assert "elete" not in str(caught.value) and "emove" not in str(caught.value)


class Pictures:
    """A data set like torchvision's: PIL images with a list of targets."""

    def __init__(self, count: int, transform=None) -> None:  # type: ignore[no-untyped-def]
        self.transform = transform
        self.targets = [i % 3 for i in range(count)]
        self.classes = ["ant", "bee", "cow"]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        image = Image.fromarray(np.full((8, 10, 3), index, np.uint8))
        return (image if self.transform is None else self.transform(image)), self.targets[index]


def noisy_transform(image: Image.Image) -> torch.Tensor:
    """A user's own random transform, from all three global generators."""
    value = np.asarray(image).astype(np.float32).transpose(2, 0, 1) + np.random.rand()  # noqa: NPY002
    return torch.from_numpy(value) + torch.rand(()) + random.random()


def test_a_torchvision_style_data_set_of_pictures() -> None:
    bundle = data.from_dataset(Pictures(60), Pictures(30), name="mine", augment=Augment(padding=1, flip=True))
    assert bundle.classes == ("ant", "bee", "cow") and bundle.shape == (8, 10) and bundle.in_channels == 3
    x, y = next(iter(bundle.eval_loader("test", 30)))
    assert torch.allclose(x[:, 0, 0, 0], torch.arange(30) / 255) and torch.equal(y, torch.arange(30) % 3)
    assert next(iter(bundle.train_loader(8)))[0].shape == (8, 3, 8, 10)


def test_a_data_set_with_its_own_random_transforms_is_reproducible() -> None:
    bundle = data.from_dataset(Pictures(30, noisy_transform))
    state = torch.get_rng_state()
    a = torch.cat([x for x, _ in bundle.train_loader(8, seed=1)])
    b = torch.cat([x for x, _ in bundle.train_loader(8, seed=1, workers=2)])
    c = torch.cat([x for x, _ in bundle.train_loader(8, seed=2)])
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(DataError, match="normalise in its own transforms"):
        data.from_dataset(Pictures(30, noisy_transform), augment=Augment(padding=1))


def test_unusable_data_sets() -> None:
    class Growing(Pictures):
        def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
            return np.zeros((4 + index, 4), np.uint8), 0

    with pytest.raises(DataError, match=r"sample 1 is \(1, 5, 4\)"):
        data.from_dataset(Growing(5))
    with pytest.raises(DataError, match="holds no samples"):
        data.from_dataset(Pictures(0))


def test_event_colours() -> None:
    """White for silence, the two colours for the two polarities, in full at `full` counts."""
    frame = np.zeros((2, 1, 4))
    frame[1, 0, 1], frame[0, 0, 2], frame[:, 0, 3] = 4, 4, 4
    silent, on, off, both = event_pixels(frame, 4.0)[0].astype(int)
    three = np.concatenate([frame, frame.sum(0, keepdims=True)])  # data.options.total
    assert np.array_equal(frame_pixels(three, 4.0), event_pixels(frame, 4.0))
    assert np.array_equal(frame_pixels(three[::-1], 4.0), image_pixels(three[::-1]))
    assert silent.tolist() == [255, 255, 255]
    assert on[0] > on[2] + 100 and off[2] > off[0] + 100
    assert abs(both[0] - (on[0] + off[0]) / 2) <= 1


def test_contact_sheets(shared_cache: Path) -> None:
    sheet = contact_sheet(data.load("digits-events", cache_dir=shared_cache, timesteps=4))
    assert sheet.width < sheet.height and len(set(sheet.tobytes())) > 50
    pixels = np.asarray(sheet).astype(int)
    assert ((pixels[..., 0] - pixels[..., 2]) > 100).any() and ((pixels[..., 2] - pixels[..., 0]) > 100).any()
    grey = image_pixels(np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    assert grey.shape == (2, 3, 3) and grey.min() == 0 and grey.max() == 255


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    run = CliRunner().invoke
    result = run(app, ["show", "digits", "--part", "test"])
    assert result.exit_code == 0 and "wrote digits.png" in result.output
    with Image.open(tmp_path / "digits.png") as image:
        assert image.size[0] > 300
    listed = run(app, ["list", "--data-dir", str(tmp_path)])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in data.names()) and "splits: tebn, tet, random:SEED" in listed.output
    wrong = run(app, ["show", "digitz"])
    assert wrong.exit_code == 1 and "error: there is no data set 'digitz'" in wrong.output
    missing = run(app, ["show", "cifar10", "--data-dir", str(tmp_path), "--no-download"])
    assert missing.exit_code == 1 and "downloading is off" in missing.output


def test_idx_files_that_do_not_belong_together(idx_dir: Path) -> None:
    folder = idx_dir / "MNIST" / "raw"
    (folder / "train-labels-idx1-ubyte").write_bytes(idx.encode(np.zeros(39, np.uint8)))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: holds labels of shape \(39,\) for the 40 images"):
        data.load("mnist", idx_dir)
    (folder / "train-images-idx3-ubyte").write_bytes(idx.encode(np.zeros((40, 28, 27), np.uint8)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: holds images of shape \(40, 28, 27\)"):
        data.load("mnist", idx_dir)


@pytest.mark.parametrize(
    "wrong", [{"mean": 0.5}, {"std": ["a"]}, {"std": [float("nan")]}, {"split": 5}, {"validation": None}]
)
def test_options_of_the_wrong_kind(shared_cache: Path, wrong: dict) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        data.load("digits", cache_dir=shared_cache, **wrong)


def test_a_sheet_that_cannot_be_drawn_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    run = CliRunner().invoke
    assert run(app, ["show", "digits", "--per-class", "0"]).exit_code == 2
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "sheet.png"):
        result = run(app, ["show", "digits", "-o", str(out)])
        assert result.exit_code == 1 and f"error: {out}: cannot be written" in result.output
    with pytest.raises(DataError, match="per_class must be a whole number of at least 1"):
        contact_sheet(data.load("digits"), per_class=-1)


def test_class_names_the_font_cannot_draw() -> None:
    font = ImageFont.load_default(size=13)
    assert drawable("cat", font) == "cat" and drawable("\u732b", font) == "\\u732b"
    assert drawable("M\u00fcll \u2019", font) == "Mull \u2019"


def test_images_of_different_shapes_name_the_shapes_and_a_way_out() -> None:
    class Mixed(Pictures):
        def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
            return torch.rand(1, 8 + index % 2, 8), index % 2

    shapes = r"differ in shape: \[\(1, 8, 8\), \(1, 9, 8\)\]; give all of them one shape"
    with pytest.raises(data.DataError, match=shapes):
        next(iter(data.from_dataset(Mixed(60)).train_loader(8, seed=0)))

"""Against real CIFAR-10 and N-MNIST, where STEADYSPIKE_DATA names a folder with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import steadyspike.data as data
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.formats import aedat2, atis
from steadyspike.data.frames import integrate
from steadyspike.data.sets import cifar

pytestmark = pytest.mark.real_data


def test_cifar10_both_layouts_and_statistics(real_data: Path, tmp_path: Path) -> None:
    bundle = data.load("cifar10", real_data, cache_dir=tmp_path)
    assert (len(bundle.split.train), len(bundle.split.validation), len(bundle.split.test)) == (45_000, 5_000, 10_000)
    images = bundle.dataset.source.data  # type: ignore[attr-defined]
    train = images[:50_000:10].float() / 255
    np.testing.assert_allclose(train.mean(dim=(0, 2, 3)), cifar.CIFAR10.mean, atol=2e-3)
    np.testing.assert_allclose(train.std(dim=(0, 2, 3)), cifar.CIFAR10.std, atol=4e-3)
    assert np.bincount(bundle.dataset.population.labels[bundle.split.validation]).tolist() == [500] * 10
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "cifar-10-batches-py").symlink_to(real_data / "cifar-10-batches-py")
    python = cifar.load(DataFolders.of(tmp_path / "py", tmp_path, False), cifar.CIFAR10)
    assert torch.equal(images, python.source.data)  # type: ignore[attr-defined]
    assert python.classes == bundle.classes


def test_cifar10_as_an_image_folder(real_data: Path, tmp_path: Path) -> None:
    """The same pixels decoded from JPEG files: those of a class as a set equal those of the binary files."""
    bundle = data.load("folder", real_data / "cifar10", cache_dir=tmp_path, size=32, policy="crop")
    assert len(bundle.dataset.source) == 60_000 and bundle.classes == cifar.CIFAR10_NAMES
    ships = bundle.split.test[bundle.dataset.population.labels[bundle.split.test] == 8][:50]
    from steadyspike.data.show import raw_samples

    decoded = {image.tobytes() for image in raw_samples(bundle, ships)}
    binary = cifar.load(DataFolders.of(real_data, tmp_path, False), cifar.CIFAR10)
    stored = {image.numpy().tobytes() for image in binary.source.data[50_000:]}  # type: ignore[attr-defined]
    assert decoded <= stored


def test_nmnist(real_data: Path, tmp_path: Path) -> None:
    bundle = data.load("nmnist", real_data, cache_dir=tmp_path, timesteps=10)
    assert (len(bundle.split.train) + len(bundle.split.validation), len(bundle.split.test)) == (1000, 100)
    files = sorted((real_data / "N-MNIST" / "Test").rglob("*.bin"))
    recordings = [atis.read(file) for file in files]
    assert all(250_000 < e.t[-1] < 345_000 and (np.diff(e.t) >= 0).all() for e in recordings), "three saccades"
    x, _ = next(iter(bundle.eval_loader("test", 100)))
    assert int(x.sum()) == sum(len(e) for e in recordings), "every event is in a frame"


def test_dvs128_objects(real_data: Path, tmp_path: Path) -> None:
    """Train is one day and test another; a mug stands upright, wider at its rim than at its foot."""
    bundle = data.load("dvs128-objects", real_data, cache_dir=tmp_path, validation="none")
    assert (len(bundle.split.train), len(bundle.split.test)) == (844, 470)
    assert bundle.classes == ("box", "mug", "pencil", "scissors", "stiletto") and bundle.shape == (64, 64)
    mug = aedat2.read(sorted((real_data / "dvs128-objects" / "train" / "mug").glob("*.aedat"))[20], axes="camera")
    rows = integrate(mug, 1)[0].sum(0)
    middle = np.flatnonzero(rows.sum(1) > 20)
    spread = [np.ptp(np.flatnonzero(rows[row] > 2)) for row in (middle[2], middle[-3])]
    assert spread[0] > spread[1] + 10, f"the rim is {spread[0]} pixels wide, the foot {spread[1]}"


def test_imagenette(real_data: Path, tmp_path: Path) -> None:
    bundle = data.load("imagenette", real_data, cache_dir=tmp_path, validation="none", resize=96)
    assert (len(bundle.split.train), len(bundle.split.test)) == (9469, 3925)
    assert bundle.classes[0] == "tench" and bundle.classes[-1] == "parachute" and bundle.shape == (96, 96)

"""MNIST and Fashion-MNIST from their idx files (plain or gzip)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.download import Remote, check_md5
from steadyspike.data.errors import DataError
from steadyspike.data.formats import idx
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class Spec:
    name: str
    folders: tuple[str, ...]
    base: str
    md5: tuple[str, str, str, str]  # md5 of the unpacked files
    classes: tuple[str, ...]
    mean: float
    std: float
    flip: bool


MNIST = Spec(
    "mnist", ("MNIST/raw", "MNIST", "mnist"), "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624",
     "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
    tuple("0123456789"), 0.1307, 0.3081, False,
)  # fmt: skip
FASHION = Spec(
    "fashion-mnist", ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist"),
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9",
     "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    0.2860, 0.3530, True,
)  # fmt: skip


def load(folders: DataFolders, spec: Spec) -> DataSet:
    paths = locate(folders, spec)
    images, labels = [], []
    for image_file, label_file in (paths[:2], paths[2:]):
        x, y = idx.read(image_file), idx.read(label_file)
        if x.ndim != 3 or x.shape[1:] != (28, 28):
            raise DataError(f"holds images of shape {x.shape}; (N, 28, 28) is expected", image_file)
        if y.shape != x.shape[:1]:
            raise DataError(f"holds labels of shape {y.shape} for the {len(x)} images of {image_file.name}", label_file)
        if len(y) and y.max() > 9:
            raise DataError(f"holds label {y.max()}; there are 10 classes", label_file)
        images.append(torch.from_numpy(x.copy()).unsqueeze(1))
        labels.append(y.astype(np.int64))
    counts = [len(y) for y in labels]
    ids = [f"{part}/{i:05d}" for part, n in zip(("train", "test"), counts) for i in range(n)]
    return DataSet(
        name=spec.name,
        source=ArraySource(torch.cat(images)),
        population=Population(ids, np.concatenate(labels), np.repeat([False, True], counts)),
        classes=spec.classes,
        channels=1,
        size=(28, 28),
        mean=(spec.mean,),
        std=(spec.std,),
        augment=Augment(padding=2, flip=spec.flip),
    )


def find(folders: DataFolders, spec: Spec) -> Path | None:
    for name in spec.folders:
        folder = folders.data_dir / name
        if any((folder / (FILES[0] + suffix)).is_file() for suffix in ("", ".gz")):
            return folder
    return None


def locate(folders: DataFolders, spec: Spec) -> list[Path]:
    """Returns the four files.

    Missing ones are downloaded, and .gz files are checked by the hash of their unpacked content.
    """
    folder = find(folders, spec) or folders.data_dir / spec.folders[-1]
    paths = []
    for name, md5 in zip(FILES, spec.md5):
        plain, packed = folder / name, folder / f"{name}.gz"
        remote = Remote(packed.name, spec.base + packed.name, md5, unpacked=True)
        if plain.is_file():
            paths.append(plain)
        elif packed.is_file():
            check_md5(packed, remote)
            paths.append(packed)
        else:
            inside = replace(folders.within(spec.name), data_dir=folder)
            paths.append(inside.downloaded(remote, spec.name))
    return paths

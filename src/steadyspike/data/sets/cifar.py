"""CIFAR-10 and CIFAR-100: official binary or python files, extracted or as the published archives.

``size`` 16, 8 or 4 averages squares of pixels. This gives small images for experiments that must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from steadyspike.data import archive
from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.events import read_bytes
from steadyspike.data.formats import cifar_batch, plain_pickle
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population

SIDE = 32  # the side of the published images
BASE = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Spec:
    """One of the two sets: file names without suffix, rows per file, label layout, archives, constants."""

    name: str
    classes: int
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    train_rows: int
    test_rows: int
    label_bytes: int
    label_key: str
    binary: tuple[str, Remote]
    python: tuple[str, Remote]
    names_in: tuple[str, str, str]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def _archive(name: str, md5: str) -> Remote:
    return Remote(name, BASE + name, md5)


CIFAR10 = Spec(
    "cifar10", 10, tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), 10_000, 10_000, 1, "labels",
    ("cifar-10-batches-bin", _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")),
    ("cifar-10-batches-py", _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")),
    ("batches.meta.txt", "batches.meta", "label_names"), (0.4913, 0.4821, 0.4465), (0.2470, 0.2434, 0.2615),
)  # fmt: skip
CIFAR100 = Spec(
    "cifar100", 100, ("train",), ("test",), 50_000, 10_000, 2, "fine_labels",
    ("cifar-100-binary", _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")),
    ("cifar-100-python", _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85")),
    ("fine_label_names.txt", "meta", "fine_label_names"), (0.5071, 0.4867, 0.4408), (0.2673, 0.2564, 0.2762),
)  # fmt: skip


def averaged(images: Tensor, size: int) -> Tensor:
    """Reduces uint8 images [N, C, 32, 32] to side ``size``: the rounded mean of every square of pixels."""
    if size == SIDE:
        return images
    if size < 4 or SIDE % size:
        raise DataError(f"size must be 32, 16, 8 or 4 (squares of pixels are averaged), not {size}")
    by = SIDE // size
    pooled = [avg_pool2d(part.float(), by).round().to(torch.uint8) for part in images.split(4096)]
    return torch.cat(pooled)


def load(folders: DataFolders, spec: Spec, size: int = SIDE) -> DataSet:
    whole_number("size", size, least=1)
    folder, binary = locate(folders, spec)
    images, labels, official_test, ids = [], [], [], []
    for part, files, rows in (("train", spec.train_files, spec.train_rows), ("test", spec.test_files, spec.test_rows)):
        for file in files:
            if binary:
                x, y = cifar_batch.read_binary(folder / f"{file}.bin", spec.label_bytes, spec.classes, rows)
            else:
                x, y = cifar_batch.read_pickle(folder / file, spec.label_key, spec.classes, rows)
            images.append(x)
            labels.append(y)
        official_test.append(np.full(rows * len(files), part == "test"))
        ids += [f"{part}/{i:05d}" for i in range(rows * len(files))]
    return DataSet(
        name=spec.name,
        source=ArraySource(averaged(torch.from_numpy(np.concatenate(images)), size)),
        population=Population(ids, np.concatenate(labels), np.concatenate(official_test)),
        classes=class_names(folder, spec, binary),
        channels=3,
        size=(size, size),
        mean=spec.mean,
        std=spec.std,
        augment=Augment(padding=size // 8, flip=True),
    )


def find(folders: DataFolders, spec: Spec) -> Path | None:
    """Returns what `load` would read, without downloading."""
    return folders.first((spec.binary[0], spec.python[0], spec.binary[1].name, spec.python[1].name))


def locate(folders: DataFolders, spec: Spec) -> tuple[Path, bool]:
    """Returns the folder with the files, and whether they are the binary ones.

    Tries the extracted folder, the archive, then a download.
    """
    for (name, _), binary in ((spec.binary, True), (spec.python, False)):
        if (folders.data_dir / name).is_dir():
            return folders.data_dir / name, binary
    for (name, remote), binary in ((spec.binary, True), (spec.python, False)):
        if (folder := folders.unpacked(remote)) is not None:
            return _inner(folder, name), binary
    name, remote = spec.binary
    path = folders.downloaded(remote, spec.name)
    return _inner(archive.extract(path, folders.cache_dir / "extracted" / remote.name.split(".")[0]), name), True


def _inner(folder: Path, name: str) -> Path:
    if not (folder / name).is_dir():
        raise DataError(f"has no folder '{name}': the archive is not the published one", folder)
    return folder / name


def class_names(folder: Path, spec: Spec, binary: bool) -> tuple[str, ...]:
    text_file, pickle_file, key = spec.names_in
    path = folder / (text_file if binary else pickle_file)
    if not path.is_file() and spec.name == "cifar10":
        return CIFAR10_NAMES
    raw = read_bytes(path, 1 << 20)
    if binary:
        names = [line for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]
    else:
        listed = plain_pickle.load(raw, path).get(key)
        if not isinstance(listed, list) or not all(isinstance(name, (str, bytes)) for name in listed):
            raise DataError(f"has no list of names under '{key}'", path)
        names = [name.decode("latin1") if isinstance(name, bytes) else name for name in listed]
    if len(names) != spec.classes:
        raise DataError(f"names {len(names)} classes; {spec.classes} are expected", path)
    return tuple(names)

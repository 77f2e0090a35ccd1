"""N-MNIST: 34 x 34 pixels, three saccades, official parts in the folders (or archives) Train and Test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steadyspike.data import archive
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError
from steadyspike.data.formats import atis
from steadyspike.data.frames import FrameSettings
from steadyspike.data.sets.recordings import Recordings, event_dataset
from steadyspike.data.splits import Population

BASE = "https://data.mendeley.com/public-files/datasets/468j46mzdv/files/"
TRAIN_URL = BASE + "39c25547-014b-4137-a934-9d29fa53c7a0/file_downloaded"
TEST_URL = BASE + "05a4d654-7e03-4c15-bdfa-9bb2bcbea494/file_downloaded"
ARCHIVES = (
    Remote("Train.zip", TRAIN_URL, "20959b8e626244a1b502305a9e6e2031"),
    Remote("Test.zip", TEST_URL, "69ca8762b2fe404d9b9bad1103e97832"),
)
FOLDERS = ("N-MNIST", "NMNIST", "nmnist", ".")
SENSOR = (34, 34)
DIGITS = tuple("0123456789")


def load(folders: DataFolders, frames: FrameSettings) -> DataSet:
    train, test = locate(folders)
    files, labels, official, ids = [], [], [], []
    for folder, part in ((train, "train"), (test, "test")):
        for label, digit in enumerate(DIGITS):
            paths = recordings_in(folder / digit)
            files += paths
            labels += [label] * len(paths)
            official += [part == "test"] * len(paths)
            ids += [f"{part}/{digit}/{file.stem}" for file in paths]
    population = Population(ids, np.array(labels, np.int64), np.array(official))
    recordings = Recordings("nmnist", files, atis.read, "atis-1", SENSOR)
    return event_dataset(folders, recordings, population, frames, classes=DIGITS)


def find(folders: DataFolders) -> Path | None:
    for name in FOLDERS:
        for inner in ("Train", "Train.zip"):
            if (folders.data_dir / name / inner).exists():
                return folders.data_dir / name
    return None


def locate(folders: DataFolders) -> tuple[Path, Path]:
    """Returns the folders Train and Test: already extracted, extracted from archives in data_dir, or downloaded."""
    for name in FOLDERS:
        folder = folders.data_dir / name
        if (folder / "Train").is_dir() and (folder / "Test").is_dir():
            return folder / "Train", folder / "Test"
        for part, other in (("Train", "Test"), ("Test", "Train")):
            if (folder / part / "0").is_dir() and not (folder / other).exists():
                raise DataError(f"is missing, but {part} is there: N-MNIST has both", folder / other)
    out = []
    for remote in ARCHIVES:
        inside = folders.within("nmnist")
        folder_or_none = inside.unpacked(remote, FOLDERS)
        if folder_or_none is None:
            path = inside.downloaded(remote, "N-MNIST")
            folder_or_none = archive.extract(path, inside.cache_dir / "extracted" / remote.name.split(".")[0])
        inner = folder_or_none / remote.name.split(".")[0]
        out.append(inner if inner.is_dir() else folder_or_none)
    return out[0], out[1]


def recordings_in(folder: Path) -> list[Path]:
    """Returns the sorted .bin files of a class folder; raises DataError if the folder is missing or has none."""
    if not folder.is_dir():
        raise DataError("is missing: a folder per digit with .bin recordings is expected", folder)
    if not (paths := sorted(folder.glob("*.bin"))):
        raise DataError("is a class folder without any .bin recording", folder)
    return paths

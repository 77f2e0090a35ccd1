"""DVS-CIFAR10 (CIFAR10-DVS): 10 x 1000 recordings of a 128 x 128 camera, without an official split.

Files are identified by the number in their name (cifar10_truck_17.aedat), never by their order, because splits are
defined by this number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from steadyspike.data import archive
from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat4
from steadyspike.data.frames import FrameSettings
from steadyspike.data.sets.cifar import CIFAR10_NAMES
from steadyspike.data.sets.recordings import Recordings, event_dataset
from steadyspike.data.splits import Population

_FIGSHARE = "https://ndownloader.figshare.com/files/"
_IDS = {
    "airplane": (7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
    "automobile": (7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
    "bird": (7712794, "a9c207c91c55b9dc2002dc21c684d785"),
    "cat": (7712812, "52c63c677c2b15fa5146a8daf4d56687"),
    "deer": (7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
    "dog": (7712818, "f379ebdf6703d16e0a690782e62639c3"),
    "frog": (7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
    "horse": (7712851, "e7cbbf77bec584ffbf913f00e682782a"),
    "ship": (7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
    "truck": (7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
}
ARCHIVES = {name: Remote(f"{name}.zip", f"{_FIGSHARE}{number}", md5) for name, (number, md5) in _IDS.items()}
# A second release has .aedat4 files: one archive that contains a zip per class.
SECOND = Remote("CIFAR10DVS.zip", f"{_FIGSHARE}38023437", "ce3a4a0682dc0943703bd8f749a7701c")
FOLDERS = (
    "dvs-cifar10",
    "DVS-CIFAR10",
    "CIFAR10DVS",
    "cifar10-dvs",
    "CIFAR10-DVS",
    "CIFAR10DVS/extract",
    "CIFAR10DVS/download",
    ".",
)
SUFFIXES = (".aedat", ".aedat4")
SENSOR = (128, 128)


def read(path: Path) -> Events:
    return aedat4.read(path) if path.suffix == ".aedat4" else aedat2.read(path)


def load(folders: DataFolders, frames: FrameSettings) -> DataSet:
    files, labels, numbers, ids = [], [], [], []
    by_class = {name: class_folder(folders, name) for name in CIFAR10_NAMES}
    suffix = one_suffix(by_class.values())
    for label, name in enumerate(CIFAR10_NAMES):
        for number, path in recordings_in(by_class[name], suffix):
            files.append(path)
            labels.append(label)
            numbers.append(number)
            ids.append(f"{name}/{number}")
    population = Population(ids, np.array(labels, np.int64), numbers=np.array(numbers, np.int64))
    recordings = Recordings("dvs-cifar10", files, read, f"{suffix[1:]}-1", SENSOR)
    return event_dataset(
        folders, recordings, population, frames,
        classes=CIFAR10_NAMES, default_split="tebn", augment=Augment(padding=4, flip=True),
    )  # fmt: skip


def one_suffix(folders: Iterable[Path]) -> str:
    """Returns the suffix of all recordings.

    Raises DataError if both kinds are in one folder, because one kind would be left out silently.
    """
    first: dict[str, Path] = {}
    for folder in folders:
        for suffix in SUFFIXES:
            if suffix not in first and (example := next(iter(folder.glob(f"*{suffix}")), None)) is not None:
                first[suffix] = example
    if len(first) > 1:
        raise DataError(f"is an .aedat4 recording, {first['.aedat']} an .aedat one; keep one kind", first[".aedat4"])
    return next(iter(first), SUFFIXES[0])


def find(folders: DataFolders) -> Path | None:
    for name in FOLDERS:
        for inner in ("airplane", "airplane.zip"):
            if (folders.data_dir / name / inner).exists() and (
                inner.endswith("zip") or any((folders.data_dir / name / inner).glob("*.aedat*"))
            ):
                return folders.data_dir / name
    return None


def class_folder(folders: DataFolders, name: str) -> Path:
    """Finds the recordings of one class: as extracted, from the class's archive in data_dir, or downloaded."""
    candidates = [folders.data_dir / folder / name for folder in FOLDERS]
    existing = [folder for folder in candidates if folder.is_dir()]
    if with_files := [f for f in existing if any(any(f.glob(f"*{s}")) for s in SUFFIXES)]:
        return with_files[0]
    inside = folders.within("dvs-cifar10")
    folder = second_release(inside, name) or inside.unpacked(ARCHIVES[name], FOLDERS)
    if folder is None:
        if existing and existing[0].parent != folders.data_dir:
            raise DataError("is a class folder without any .aedat or .aedat4 recording", existing[0])
        path = inside.downloaded(ARCHIVES[name], "DVS-CIFAR10")
        folder = archive.extract(path, inside.cache_dir / "extracted" / name)
    return folder / name if (folder / name).is_dir() else folder


def second_release(folders: DataFolders, name: str) -> Path | None:
    """Returns the class's recordings from CIFAR10DVS.zip, if this file is in data_dir."""
    if (outer := folders.unpacked(SECOND, FOLDERS)) is None:
        return None
    if not (inner := sorted(outer.rglob(f"{name}.zip"))):
        raise DataError(f"holds no {name}.zip: the archive is not the published one", outer)
    return archive.extract(inner[0], folders.where(f"extracted/{name}-aedat4"))


def recordings_in(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """Returns (number, file) of a class folder in order of the numbers.

    Raises DataError if the folder is empty, if a name has no number, or if two names have the same number.
    """
    out: dict[int, Path] = {}
    for path in folder.glob(f"*{suffix}"):
        if (match := re.search(r"(\d+)$", path.stem)) is None:
            raise DataError("has no number at the end of its name, by which the splits are defined", path)
        if (number := int(match.group(1))) in out:
            raise DataError(f"has the same number as {out[number].name}", path)
        out[number] = path
    if not out:
        raise DataError(f"is a class folder without any {suffix} recording", folder)
    return sorted(out.items())

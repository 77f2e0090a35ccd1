"""A folder of your own event recordings: .aedat4, .aedat or .bin files in class folders, as clips of T frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.events import Events
from steadyspike.data.formats.recording_file import SUFFIXES, read_recording
from steadyspike.data.frames import FrameSettings
from steadyspike.data.sets.class_folders import read_tree
from steadyspike.data.sets.recordings import Recordings, event_dataset

OBJECTS = "dvs128-objects"


def load(
    folders: DataFolders, frames: FrameSettings, sensor: Sequence[int] | None = None, axes: str = "dvs-cifar10"
) -> DataSet:
    """Loads the recordings below data_dir. All must come from one sensor.

    sensor: (height, width) of the sensor. .aedat and .aedat4 files contain it. It must be given for .bin files (the
    40-bit format of N-MNIST), which do not contain it.
    axes: for AEDAT 2.0 files: "dvs-cifar10" (rotated as that data set) or "camera" (not rotated)
    """
    return _read("event-folder", folders.data_dir, folders, frames, sensor, axes)


def load_objects(folders: DataFolders, frames: FrameSettings) -> DataSet:
    """Five objects in front of a DVS128 camera: dvs128-objects/train/<object>/*.aedat.

    The part test/ was recorded on another day.
    """
    if (root := find_objects(folders)) is None:
        raise DataError(
            "was not found; train/<object>/*.aedat and test/ are expected in it", folders.data_dir / OBJECTS
        )
    return _read(OBJECTS, root, folders, frames, None, "camera")


def find_objects(folders: DataFolders) -> Path | None:
    root = folders.data_dir / OBJECTS
    return root if (root / "train").is_dir() else None


def _read(
    name: str, root: Path, folders: DataFolders, frames: FrameSettings, sensor: Sequence[int] | None, axes: str
) -> DataSet:
    tree = read_tree(root, SUFFIXES, "recording")
    files = [root / path for path in tree.paths]
    size = _sensor(files, sensor)

    def read(path: Path) -> Events:
        return read_recording(path, size, axes)

    # The reader is part of the cache's key, because other axes give other clips.
    reader = f"recording-file-1 {size[0]} x {size[1]}" + (f" {axes}" if axes != "dvs-cifar10" else "")
    return event_dataset(
        folders, Recordings(name, files, read, reader, size), tree.population(), frames,
        classes=tree.classes, default_split=tree.default_split, augment=Augment(padding=4, flip=True),
        settings={"sensor": list(size), **({"axes": axes} if axes != "dvs-cifar10" else {})},
    )  # fmt: skip


def _sensor(files: list[Path], given: Sequence[int] | None) -> tuple[int, int]:
    """Returns the given (height, width), or that of the first file."""
    if given is not None:
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            raise DataError(f"sensor must be (height, width), not {given!r}")
        for side in given:
            whole_number("sensor", side)
        return given[0], given[1]
    silent = next((file for file in files if file.suffix == ".bin"), None)
    if silent is not None:
        raise DataError("does not contain the size of its sensor; give sensor=(height, width)", silent)
    return read_recording(files[0], (0, 0)).size

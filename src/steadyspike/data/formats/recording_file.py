"""One event file of any supported format, which is chosen by the file's ending."""

from __future__ import annotations

from pathlib import Path

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat4, aedat31, atis

SUFFIXES = (".bin", ".aedat", ".aedat4")


def read_recording(path: Path, sensor: tuple[int, int], axes: str = "dvs-cifar10") -> Events:
    """Reads the events of a .bin (N-MNIST), .aedat or .aedat4 file.

    sensor: (height, width), for files that do not contain it
    axes: for AEDAT 2.0 files, see `aedat2`
    """
    if path.suffix == ".bin":
        return atis.read(path, sensor)
    if path.suffix == ".aedat4":
        return aedat4.read(path)
    if path.suffix == ".aedat":
        with path.open("rb") as file:
            newer = file.read(12).startswith(b"#!AER-DAT3")
        return aedat31.read(path) if newer else aedat2.read(path, axes)
    raise DataError("is not an event file: its name does not end with .bin, .aedat or .aedat4", path)

"""The embedded digits recorded by a simulated event camera in three saccades, as N-MNIST's digits were by a real one.

The recordings are written once in N-MNIST's 40-bit layout and read back through the same reader as N-MNIST itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.cache import build_once, key_of
from steadyspike.data.camera import Camera, record
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.events import Events
from steadyspike.data.formats import atis
from steadyspike.data.frames import FrameSettings
from steadyspike.data.sets import digits
from steadyspike.data.sets.recordings import Recordings, event_dataset

MARGIN = 2
CORNERS = ((-1.0, 0.0), (1.0, -1.5), (1.0, 1.5), (-1.0, 0.0))
SACCADE_US = 100_000
STEPS = 12
HASH = "recordings.sha256"


def path_of_gaze() -> Iterator[tuple[int, tuple[float, float]]]:
    """Returns (time in us, displacement (y, x) in pixels) along a triangle: one smooth movement per saccade."""
    yield 0, CORNERS[0]
    for number, (here, there) in enumerate(pairwise(CORNERS)):
        for step in range(1, STEPS + 1):
            eased = (1 - np.cos(np.pi * step / STEPS)) / 2
            y, x = (float(a + (b - a) * eased) for a, b in zip(here, there))
            yield number * SACCADE_US + step * SACCADE_US // STEPS, (y, x)


def simulate(canvas: int, camera: Camera) -> tuple[list[Events], NDArray[np.int64]]:
    """Returns all recordings and their labels.

    The sensor is larger than the canvas by a margin, so that the digits stay on it during saccades.
    """
    drawn = digits.placed(canvas, camera.seed)
    drawn.centre.add_(MARGIN)
    sensor = canvas + 2 * MARGIN
    scene = ((t, digits.draw(drawn, sensor, shift).numpy().astype(np.float64)) for t, shift in path_of_gaze())
    return record(scene, camera), drawn.labels


def write(folder: Path, canvas: int, camera: Camera) -> None:
    """Writes <digit>/<number>.bin for every recording, and a hash of all of them."""
    for digit in digits.CLASSES:
        (folder / digit).mkdir()
    recordings, labels = simulate(canvas, camera)
    for number, (events, label) in enumerate(zip(recordings, labels)):
        (folder / str(label) / f"{number:04d}.bin").write_bytes(atis.encode(events))
    (folder / HASH).write_text(hash_of(folder))


def written(folder: Path) -> list[Path]:
    """Returns the recordings in order of their numbers."""
    return sorted(folder.glob("*/*.bin"), key=lambda file: file.stem)


def hash_of(folder: Path) -> str:
    """Returns one hash over the names and contents of all recordings."""
    digest = hashlib.sha256()
    for file in written(folder):
        raw = file.read_bytes()
        digest.update(f"{file.parent.name}/{file.name}:{len(raw)}:".encode() + raw)
    return digest.hexdigest()


def complete(folder: Path) -> bool:
    """Returns whether all recordings are as they were written.

    If one is missing or damaged, all of them are made again.
    """
    try:
        return (folder / HASH).read_text() == hash_of(folder)
    except (OSError, ValueError):
        return False


def load(
    folders: DataFolders, frames: FrameSettings, canvas: int = 16, placement_seed: int = 0, threshold: float = 0.4
) -> DataSet:
    """Loads the recordings of the digits.

    canvas, placement_seed: as in `digits`
    threshold: of the camera, in units of log intensity
    """
    whole_number("canvas", canvas, least=digits.SMALLEST)
    whole_number("placement_seed", placement_seed, least=0)
    if (sensor := canvas + 2 * MARGIN) > atis.OVERFLOW_Y:
        raise DataError(
            f"canvas must be at most {atis.OVERFLOW_Y - 2 * MARGIN} (the 40-bit event format), not {canvas}"
        )
    camera = Camera(threshold=threshold, seed=placement_seed)
    settings: dict[str, Any] = {"canvas": canvas, "camera": camera.as_dict()}
    key = key_of({**settings, "gaze": [CORNERS, SACCADE_US, STEPS, MARGIN], "version": 1})
    folder = folders.where(f"digits-events-{key}", complete)
    build_once(folder, complete, lambda partial: write(partial, canvas, camera))
    files = written(folder)
    labels = np.array([int(file.parent.name) for file in files], np.int64)
    population = digits.population(labels, [int(file.stem) for file in files])
    recordings = Recordings(
        "digits-events", files, lambda path: atis.read(path, (sensor, sensor)), "atis-1", (sensor, sensor),
        (folder / HASH).read_text(),
    )  # fmt: skip
    return event_dataset(
        folders, recordings, population, frames,
        classes=digits.CLASSES, default_split="random:0", test_fraction=0.2, settings=settings,
    )  # fmt: skip

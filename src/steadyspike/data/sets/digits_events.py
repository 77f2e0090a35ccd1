"""The embedded digits seen by a simulated event camera in three saccades, as N-MNIST's digits were seen by a real one.

The recordings are written once in N-MNIST's 40-bit layout and read back through the same reader as N-MNIST itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.cache import build_once, key_of
from steadyspike.data.camera import Camera, record
from steadyspike.data.dataset import DataSet
from steadyspike.data.events import Events
from steadyspike.data.formats import atis
from steadyspike.data.frames import FrameSettings
from steadyspike.data.place import Place
from steadyspike.data.sets import digits
from steadyspike.data.sets.recordings import Recordings, event_dataset

MARGIN = 2
CORNERS = ((-1.0, 0.0), (1.0, -1.5), (1.0, 1.5), (-1.0, 0.0))
SACCADE_US = 100_000
STEPS = 12


def path_of_gaze() -> Iterator[tuple[int, tuple[float, float]]]:
    """(time in us, displacement (y, x) in pixels) along a triangle: one eased movement per saccade."""
    yield 0, CORNERS[0]
    for number, (here, there) in enumerate(pairwise(CORNERS)):
        for step in range(1, STEPS + 1):
            eased = (1 - np.cos(np.pi * step / STEPS)) / 2
            y, x = (float(a + (b - a) * eased) for a, b in zip(here, there))
            yield number * SACCADE_US + step * SACCADE_US // STEPS, (y, x)


def simulate(canvas: int, camera: Camera) -> tuple[list[Events], NDArray[np.int64]]:
    """All recordings and their labels. The sensor is a margin larger than the canvas, so saccades stay on it."""
    drawn = digits.placed(canvas, camera.seed)
    drawn.centre.add_(MARGIN)
    sensor = canvas + 2 * MARGIN
    scene = ((t, digits.draw(drawn, sensor, shift).numpy().astype(np.float64)) for t, shift in path_of_gaze())
    return record(scene, camera), drawn.labels


def write(folder: Path, canvas: int, camera: Camera) -> None:
    """<digit>/<number>.bin for every recording."""
    for digit in digits.CLASSES:
        (folder / digit).mkdir()
    recordings, labels = simulate(canvas, camera)
    for number, (events, label) in enumerate(zip(recordings, labels)):
        (folder / str(label) / f"{number:04d}.bin").write_bytes(atis.encode(events))


def load(
    place: Place, frames: FrameSettings, canvas: int = 16, placement_seed: int = 0, threshold: float = 0.4
) -> DataSet:
    """canvas, placement_seed: as in `digits`; threshold: of the camera, in units of log intensity."""
    camera = Camera(threshold=threshold, seed=placement_seed)
    settings: dict[str, Any] = {"canvas": canvas, "camera": camera.as_dict()}
    key = key_of({**settings, "gaze": [CORNERS, SACCADE_US, STEPS, MARGIN], "version": 1})
    folder = place.cache_dir / f"digits-events-{key}"
    build_once(folder, Path.is_dir, lambda partial: write(partial, canvas, camera))
    files = sorted(folder.glob("*/*.bin"), key=lambda file: file.stem)
    labels = np.array([int(file.parent.name) for file in files], np.int64)
    sensor = (canvas + 2 * MARGIN, canvas + 2 * MARGIN)
    recordings = Recordings("digits-events", files, lambda path: atis.read(path, sensor), "atis-1", sensor)
    return event_dataset(
        place, recordings, digits.population(labels), frames,
        classes=digits.CLASSES, default_split="random:0", test_fraction=0.2, settings=settings,
    )  # fmt: skip

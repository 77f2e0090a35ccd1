"""A simulated event camera: every pixel sends an event when its log intensity has changed by a threshold.

A pixel remembers the level of its last event. Between two images of the scene its log intensity is interpolated
linearly. Each time it crosses the next level up (down), an event of polarity 1 (0) is sent with the time of the
crossing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events


@dataclass(frozen=True)
class Camera:
    """The settings of the simulated camera.

    threshold: change of log intensity per event
    mismatch: relative spread of the threshold over pixels (a fixed pattern)

    dark: intensity added before the logarithm (the sensor's dark current)
    noise: random events per pixel and second
    """

    threshold: float = 0.4
    mismatch: float = 0.05
    dark: float = 0.1
    noise: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("threshold", "mismatch", "dark", "noise"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                raise DataError(f"the camera's {name} must be a finite number, not {value!r}")
        if not self.threshold > 0 or not self.dark >= 0 or not self.noise >= 0:
            raise DataError(f"the camera's threshold must be positive, dark and noise not negative: {self}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def thresholds(self, height: int, width: int) -> NDArray[np.float64]:
        spread = np.random.default_rng([self.seed, 1]).normal(1.0, self.mismatch, (height, width))
        return self.threshold * spread.clip(0.5, 1.5)


def record(scene: Iterable[tuple[int, NDArray[np.floating]]], camera: Camera) -> list[Events]:
    """Makes the recordings of N scenes at once.

    `scene` yields (time in us, intensities [N, H, W] in 0..1) in order of time.
    """
    frames = iter(scene)
    before, image = next(frames)
    level = np.log(image + camera.dark)
    reference = level.copy()
    count, height, width = image.shape
    step = np.broadcast_to(camera.thresholds(height, width), image.shape)
    parts = []
    start = before
    for now, image in frames:
        new = np.log(image + camera.dark)
        parts.append(_crossings(level, new, reference, step, (before, now)))
        level, before = new, now
    parts.append(_noise(camera, (count, height, width), (start, before)))
    sample, y, x, t, p = (np.concatenate(column) for column in zip(*parts))
    order = np.lexsort((t, sample))
    edges = np.searchsorted(sample[order], np.arange(count + 1))
    x, y, t, p = x[order], y[order], t[order], p[order]
    return [Events(x[a:b], y[a:b], t[a:b], p[a:b], (height, width)) for a, b in pairwise(edges)]


Columns = tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int64], NDArray[np.uint8]]


def _columns(flat: NDArray[np.int64], shape: tuple[int, ...], t: NDArray[np.int64], p: NDArray[Any]) -> Columns:
    sample, y, x = np.unravel_index(flat, shape)
    return sample.astype(np.int64), y.astype(np.uint16), x.astype(np.uint16), t, p.astype(np.uint8)


def _crossings(
    old: NDArray[np.floating], new: NDArray[np.floating], reference: NDArray[np.floating], step: NDArray[np.floating],
    span: tuple[int, int],
) -> Columns:  # fmt: skip
    """Returns the events of all pixels between two images.

    Changes `reference` to the level of each pixel's last event.
    """
    crossed = np.trunc((new - reference) / step).astype(np.int64)
    flat = np.flatnonzero(crossed)
    number = np.abs(crossed.ravel()[flat])
    which = np.repeat(flat, number)
    # 1, 2, ... within each pixel: the number of this crossing
    nth = np.arange(len(which)) - np.repeat(np.cumsum(number) - number, number) + 1
    up = crossed.ravel()[which] > 0
    at = reference.ravel()[which] + np.where(up, nth, -nth) * step.ravel()[which]
    change = (new - old).ravel()[which]
    fraction = np.clip((at - old.ravel()[which]) / np.where(change == 0, 1, change), 0, 1)
    t = (span[0] + fraction * (span[1] - span[0])).astype(np.int64)
    reference += crossed * step
    return _columns(which, old.shape, t, up)


def _noise(camera: Camera, shape: tuple[int, int, int], span: tuple[int, int]) -> Columns:
    random = np.random.default_rng([camera.seed, 2])
    total = random.poisson(camera.noise * (span[1] - span[0]) * 1e-6 * np.prod(shape))
    flat = random.integers(0, np.prod(shape), total)
    return _columns(flat, shape, random.integers(span[0], span[1], total), random.integers(0, 2, total))

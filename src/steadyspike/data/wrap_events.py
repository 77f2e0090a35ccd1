"""Event recordings that the user already has in Python (tonic's data sets, or arrays of x, y, t, p) as a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.augment import Augment
from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset_catalogue import frame_settings
from steadyspike.data.errors import DataError
from steadyspike.data.events import Events, checked
from steadyspike.data.frames import FrameSettings, clip
from steadyspike.data.wrap import Pairs, from_dataset

FIELDS = ("x", "y", "t", "p")


def is_recording(item: Any) -> bool:
    """Returns whether an item is events: `Events`, a NumPy array with fields x, y, t, p, or four arrays by name."""
    if isinstance(item, Events):
        return True
    names = item.keys() if isinstance(item, Mapping) else getattr(getattr(item, "dtype", None), "names", None) or ()
    return set(FIELDS) <= set(names)


def from_recordings(
    train: Pairs,
    test: Pairs | None = None,
    *,
    sensor: Sequence[int] | None = None,
    timesteps: int = 10,
    by: str = "number",
    size: int | tuple[int, int] | None = None,
    antialias: bool = False,
    total: bool = False,
    name: str = "custom",
    split: str | None = None,
    validation: str = "holdout",
    augment: Augment | dict[str, Any] | str | None = None,
) -> DataBundle:
    """Makes a bundle of clips of T frames from data sets of (recording, label) pairs.

    A recording is `Events`, a NumPy array with the fields x, y, t (microseconds) and p, as in tonic, or a mapping of
    four arrays with these names. All recordings are turned into frames once and are kept in memory as counts.

    sensor: (height, width); by default that of the `Events`, or ``train.sensor_size`` (tonic's (width, height, 2))
    timesteps, by, size, antialias, total: how events become frames, see `FrameSettings`

    All other arguments are as in `from_dataset`.
    """
    chosen = {"by": by, "size": size, "antialias": antialias, "total": total}
    frames = frame_settings(FrameSettings(), timesteps, chosen)
    sensor_size = _sensor(train, sensor)
    made = [None if pool is None else _Clips(pool, sensor_size, frames, name) for pool in (train, test)]
    assert made[0] is not None
    settings = {"frames": frames.as_dict()}
    return from_dataset(
        made[0], made[1], name=name, split=split, validation=validation, augment=augment, settings=settings
    )


class _Clips:
    """Yields the recordings of a data set as clips [T, C, H, W]."""

    def __init__(self, pool: Pairs, sensor: tuple[int, int] | None, frames: FrameSettings, name: str) -> None:
        self.pool, self.sensor, self.frames, self.name = pool, sensor, frames, name
        self.classes = getattr(pool, "classes", None)

    def __len__(self) -> int:
        return len(self.pool)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        item, label = self.pool[index]
        frames = clip(as_events(item, self.sensor, f"data set '{self.name}', sample {index}"), self.frames)
        narrow = frames if frames.dtype == np.float32 else frames.astype(np.int32)
        return torch.from_numpy(np.ascontiguousarray(narrow)), label


def as_events(item: Any, sensor: tuple[int, int] | None, where: str) -> Events:
    """Returns an item as checked `Events`; ``where`` describes its origin in messages."""
    if isinstance(item, Events):
        return item
    if not is_recording(item):
        raise DataError(f"{where} is {type(item).__name__}; a recording with x, y, t and p is expected")
    if sensor is None:
        raise DataError(f"{where}: give sensor=(height, width), which arrays of events do not contain")
    x, y, t, p = (_whole(np.asarray(item[field]), field, where) for field in FIELDS)
    if {len(a) for a in (x, y, t, p)} != {len(x)}:
        raise DataError(f"{where}: x, y, t and p have different lengths")
    if len(x) and (min(x.min(), y.min()) < 0 or not np.isin(p, (0, 1)).all()):
        raise DataError(f"{where}: x and y must not be negative, and p must be 0 or 1")
    return checked(x, y, t, p, sensor, where)


def _whole(array: NDArray[Any], field: str, where: str) -> NDArray[np.int64]:
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        raise DataError(f"{where}: {field} is {array.dtype} of shape {array.shape}; whole numbers [N] are expected")
    return array.astype(np.int64)


def _sensor(train: Pairs, given: Sequence[int] | None) -> tuple[int, int] | None:
    if given is not None:
        if len(given) != 2:
            raise DataError(f"sensor must be (height, width), not {given!r}")
        return int(given[0]), int(given[1])
    named = getattr(train, "sensor_size", None)
    return None if named is None else (int(named[1]), int(named[0]))

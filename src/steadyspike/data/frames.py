"""Events to frames: counts per pixel and polarity in T slices, and their resizing.

Every event is counted: the last slice gets the remainder, counts are neither clipped nor normalised, and a slice
without events is an empty frame.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, switch, whole_number
from steadyspike.data.events import Events

SLICING = ("number", "time")


@dataclass(frozen=True)
class FrameSettings:
    """All settings of a clip. They are part of the cache key and of a run's record.

    timesteps: the number of frames T
    by: "number" (N // T events per frame) or "time" (slices of equal duration)
    size: (height, width) to resize to, or None for the sensor's own
    antialias: off by default, because the published results were made so; torchvision's later default (on) halves the
    contrast
    total: adds a third channel, the sum of both polarities, as in SpikingResformer
    """

    timesteps: int = 10
    by: str = "number"
    size: tuple[int, int] | None = None
    antialias: bool = False
    total: bool = False

    def __post_init__(self) -> None:
        whole_number("timesteps", self.timesteps)
        if self.by not in SLICING:
            raise DataError(f"frames can be cut by {' or '.join(SLICING)}, not by '{self.by}'")
        switch("antialias", self.antialias)
        switch("total", self.total)
        if self.size is not None:
            if not isinstance(self.size, tuple) or len(self.size) != 2:
                raise DataError(f"size must be (height, width), one number for a square or None, not {self.size!r}")
            for side in self.size:
                whole_number("size", side)

    @property
    def channels(self) -> int:
        return 3 if self.total else 2

    def as_dict(self) -> dict[str, Any]:
        """Plain values.

        Leaves out ``total`` if it is off, so that clips that were cached before this setting existed remain valid.
        """
        plain = {**asdict(self), "size": None if self.size is None else list(self.size)}
        return plain if self.total else {key: value for key, value in plain.items() if key != "total"}


def slice_index(events: Events, timesteps: int, by: str) -> NDArray[np.int64]:
    """Returns the frame [N] that every event belongs to."""
    if by == "number":
        width = max(len(events) // timesteps, 1)
        index = np.arange(len(events), dtype=np.int64) // width
    else:
        since = events.t - (events.t.min() if len(events) else 0)
        span = int(since.max()) if len(events) else 0
        index = since // max(span // timesteps, 1)
    return np.minimum(index, timesteps - 1)


def integrate(events: Events, timesteps: int, by: str = "number") -> NDArray[np.int64]:
    """Returns counts [T, 2, H, W]; channel 0 holds polarity 0 (darker), channel 1 polarity 1 (brighter).

    If there are fewer events than frames, frame k holds event k and the remaining frames are empty.
    """
    height, width = events.size
    cell = slice_index(events, timesteps, by)
    for factor, part in ((2, events.p), (height, events.y), (width, events.x)):
        cell *= factor
        cell += part
    counts = np.bincount(cell, minlength=timesteps * 2 * height * width)
    return counts.reshape(timesteps, 2, height, width)


def resize(frames: NDArray[np.integer], size: tuple[int, int], antialias: bool) -> NDArray[np.float32]:
    """Resizes counts [T, 2, H, W] bilinearly to float frames [T, 2, *size] (half-pixel centres)."""
    import torch
    from torch.nn.functional import interpolate

    counts = torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float32))
    return interpolate(counts, size=size, mode="bilinear", align_corners=False, antialias=antialias).numpy()


def clip(events: Events, settings: FrameSettings) -> NDArray[Any]:
    """Returns the clip [T, 2, H, W] of one recording: integer counts, or float32 if `settings.size` resizes them.

    With `settings.total` it is [T, 3, H, W].
    """
    frames: NDArray[Any] = integrate(events, settings.timesteps, settings.by)
    if settings.size is not None and settings.size != events.size:
        frames = resize(frames, settings.size, settings.antialias)
    return np.concatenate([frames, frames.sum(1, keepdims=True)], 1) if settings.total else frames

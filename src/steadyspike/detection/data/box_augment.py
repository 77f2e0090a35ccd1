"""Augments a training image and its boxes: mosaic, zoom, colours, mirroring; all random numbers come from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.errors import DataError
from steadyspike.detection.data.mosaic import Scene, mirrored, mosaic, recoloured, zoom


@dataclass(frozen=True)
class BoxAugment:
    """mosaic, flip: probabilities
    scale: zoom by a factor from 1 - scale to 1 + scale
    translate: the largest shift of the centre, as a share of the input
    hsv: the largest distance from 1 of the factors of hue, saturation and value

    The defaults are those of EMS-YOLO (and of YOLOv5).
    """

    mosaic: float = 1.0
    scale: float = 0.5
    translate: float = 0.1
    hsv: tuple[float, ...] = (0.015, 0.7, 0.4)
    flip: float = 0.5

    def __post_init__(self) -> None:
        for name in ("mosaic", "scale", "translate", "flip"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value <= 1 or (name == "scale" and value == 1):
                raise DataError(f"{name} must be a number from 0 to 1, not {value!r}")
        if (
            not isinstance(self.hsv, (tuple, list))
            or len(self.hsv) != 3
            or not all(isinstance(v, (int, float)) and 0 <= v <= 1 for v in self.hsv)
        ):
            raise DataError(f"hsv must be three numbers from 0 to 1, not {self.hsv!r}")
        object.__setattr__(self, "hsv", tuple(self.hsv))

    def __call__(
        self, first: int, pool: NDArray[np.int64], scene: Callable[[int], Scene], room: tuple[int, int], seed: int
    ) -> Scene:
        """Returns the augmented scene of image ``first``; ``scene(i)`` returns an image scaled to fit the ``room``.

        pool: the images of the training part, from which the other images of a mosaic are drawn. Equal seeds give equal
        scenes.
        """
        generator = torch.Generator().manual_seed(seed)
        draws: Sequence[float] = torch.rand(12, generator=generator, dtype=torch.float64).tolist()
        height, width = room
        if draws[0] < self.mosaic:
            others = [int(pool[i]) for i in torch.randint(len(pool), (3,), generator=generator).tolist()]
            chosen = [[first, *others][index] for index in torch.randperm(4, generator=generator).tolist()]
            centre = (round(width / 2 + draws[1] * width), round(height / 2 + draws[2] * height))
            whole = mosaic([scene(i) for i in chosen], room, centre)
        else:
            whole = scene(first)
        factor = 1 + self.scale * (2 * draws[3] - 1)
        shift = tuple(
            side * (0.5 + self.translate * (2 * draw - 1)) for side, draw in ((width, draws[4]), (height, draws[5]))
        )
        whole = zoom(whole, room, factor, (shift[0], shift[1]))
        if any(self.hsv):
            h, s, v = (1 + gain * (2 * draw - 1) for gain, draw in zip(self.hsv, draws[6:9]))
            whole = whole._replace(image=recoloured(whole.image, (h, s, v)))
        return mirrored(whole) if draws[9] < self.flip else whole

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hsv": list(self.hsv)}

"""Fits images into the network's input: scaled with their aspect ratio kept, with grey around."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

GREY = (114, 114, 114)
Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """The position of an image in the input: a point (x, y) of it is moved to (scale x + left, scale y + top).

    scale is (horizontal, vertical), because the sides of the scaled image are rounded to whole pixels.
    """

    scale: tuple[float, float]
    left: int
    top: int

    def forward(self, corners: Floats) -> Floats:
        """Converts corner boxes [n, 4] of the image to pixels of the input."""
        across, down = self.scale
        return corners * [across, down, across, down] + [self.left, self.top, self.left, self.top]

    def back(self, corners: Floats) -> Floats:
        """Converts corner boxes [n, 4] of the input to pixels of the image."""
        across, down = self.scale
        return (corners - [self.left, self.top, self.left, self.top]) / [across, down, across, down]


def scaled_size(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """Returns the largest (height, width) in the room with the aspect ratio of ``size``."""
    share = min(room[0] / size[0], room[1] / size[1])
    return max(1, min(room[0], round(size[0] * share))), max(1, min(room[1], round(size[1] * share)))


def fit(size: tuple[int, int], room: tuple[int, int]) -> Fit:
    """Returns the position of an image of (height, width) in the middle of an input of (height, width)."""
    height, width = scaled_size(size, room)
    return Fit((width / size[1], height / size[0]), (room[1] - width) // 2, (room[0] - height) // 2)


def scaled(image: Image, room: tuple[int, int]) -> Image:
    """Returns the image in its `scaled_size`, bilinear."""
    from PIL.Image import Resampling

    height, width = scaled_size((image.height, image.width), room)
    return image if image.size == (width, height) else image.resize((width, height), Resampling.BILINEAR)


def letterbox(image: Image, room: tuple[int, int]) -> Image:
    """Returns the image scaled into the middle of a grey input of (height, width)."""
    from PIL import Image as pillow

    small = scaled(image, room)
    if small.size == (room[1], room[0]):
        return small
    whole = pillow.new("RGB", (room[1], room[0]), GREY)
    fitted = fit((image.height, image.width), room)
    whole.paste(small, (fitted.left, fitted.top))
    return whole

"""Mosaic: four images around a random point of a canvas, of which a random piece becomes the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadyspike.detection.data.letterbox import GREY

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LEAST_SIDE, _LEAST_SHARE, _MOST_ASPECT = 2.0, 0.1, 20.0


class Scene(NamedTuple):
    """An image with its boxes: corners [n, 4] in its pixels, classes [n]."""

    image: Image
    corners: Floats
    classes: Ints


def mosaic(scenes: list[Scene], room: tuple[int, int], centre: tuple[int, int]) -> Scene:
    """Puts four scenes on a grey canvas twice as high and wide as ``room``; their corners meet at ``centre`` (x, y).

    The order is top left, top right, bottom left, bottom right; parts outside of the canvas are cut off.
    """
    from PIL import Image as pillow

    height, width = room
    canvas = pillow.new("RGB", (2 * width, 2 * height), GREY)
    corners, classes = [], []
    for corner, scene in enumerate(scenes):
        left = centre[0] - (scene.image.width if corner % 2 == 0 else 0)
        top = centre[1] - (scene.image.height if corner < 2 else 0)
        canvas.paste(scene.image, (left, top))
        corners.append(scene.corners + [left, top, left, top])
        classes.append(scene.classes)
    moved = np.concatenate(corners).clip(0, [2 * width, 2 * height] * 2)
    return Scene(canvas, moved, np.concatenate(classes))


def zoom(scene: Scene, room: tuple[int, int], scale: float, shift: tuple[float, float]) -> Scene:
    """Scales the scene about its centre, which moves to ``shift`` (x, y) of an input of ``room``; the rest is grey.

    Boxes are cut to the input. A box is kept if it has more than 2 pixels in both directions, at least a tenth of its
    area, and an aspect ratio below 20.
    """
    from PIL.Image import Resampling, Transform

    height, width = room
    middle_x, middle_y = scene.image.width / 2, scene.image.height / 2
    inverse = (1 / scale, 0, middle_x - shift[0] / scale, 0, 1 / scale, middle_y - shift[1] / scale)
    image = scene.image.transform((width, height), Transform.AFFINE, inverse, Resampling.BILINEAR, fillcolor=GREY)
    offset = np.array([shift[0] - scale * middle_x, shift[1] - scale * middle_y] * 2)
    moved = scene.corners * scale + offset
    cut = moved.clip(0, [width, height] * 2)
    kept = worth_keeping(moved, cut)
    return Scene(image, cut[kept], scene.classes[kept])


def worth_keeping(before: Floats, after: Floats) -> NDArray[np.bool_]:
    """Returns which boxes are kept after they were cut from ``before`` to ``after``."""
    whole, rest = before[:, 2:] - before[:, :2], after[:, 2:] - after[:, :2]
    aspect = np.maximum(rest[:, 0] / np.maximum(rest[:, 1], 1e-16), rest[:, 1] / np.maximum(rest[:, 0], 1e-16))
    share = rest.prod(1) / np.maximum(whole.prod(1), 1e-16)
    return (rest > _LEAST_SIDE).all(1) & (share > _LEAST_SHARE) & (aspect < _MOST_ASPECT)


def mirrored(scene: Scene) -> Scene:
    """Mirrors left and right."""
    from PIL.Image import Transpose

    width = scene.image.width
    corners = scene.corners[:, [2, 1, 0, 3]].copy()
    corners[:, [0, 2]] = width - corners[:, [0, 2]]
    return Scene(scene.image.transpose(Transpose.FLIP_LEFT_RIGHT), corners, scene.classes)


def recoloured(image: Image, factors: tuple[float, float, float]) -> Image:
    """Multiplies hue, saturation and value by the factors; hue wraps around, the others are clipped."""
    levels = np.arange(256)
    table = np.concatenate(
        [
            (levels * factors[0]).astype(np.int64) % 256,
            (levels * factors[1]).clip(0, 255).astype(np.int64),
            (levels * factors[2]).clip(0, 255).astype(np.int64),
        ]
    )
    return image.convert("HSV").point(table.tolist()).convert("RGB")

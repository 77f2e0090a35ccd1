"""Coloured shapes drawn by the library itself: a detection set without a download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.data_folders import DataFolders
from steadyspike.data.errors import whole_number
from steadyspike.detection.data.box_augment import BoxAugment
from steadyspike.detection.data.box_table import TEST, TRAIN, VALIDATION, Box, Picture, box_table
from steadyspike.detection.data.detection_set import DetectionSet, detection_set, input_size
from steadyspike.detection.data.image_store import ArrayStore

CLASSES = ("circle", "square", "triangle")
MOST = 4
_FINE = 3  # points per pixel and side, for smooth edges
_TRIES = 20


def load(
    folders: DataFolders, size: int | tuple[int, int] = 96, images: int = 320, drawing_seed: int = 0
) -> DetectionSet:
    """Makes images of one to four circles, squares and triangles of any colour on a noisy background.

    A fifth of the images is the validation part, and another fifth the test part.
    """
    whole_number("images", images, least=10)
    whole_number("drawing_seed", drawing_seed, least=0)
    height, width = input_size(size)
    random = np.random.default_rng(drawing_seed)
    pixels = np.empty((images, height, width, 3), np.uint8)
    pictures = []
    for i in range(images):
        pixels[i], boxes = draw(random, height, width)
        part = TRAIN if i % 5 < 3 else VALIDATION if i % 5 == 3 else TEST
        pictures.append(Picture(i + 1, str(i), (height, width), part, boxes))
    table = box_table(pictures, dict(enumerate(CLASSES, 1)), "shapes")
    store = ArrayStore(pixels)
    augment = BoxAugment(mosaic=0.5, scale=0.3)
    return detection_set("shapes", table, dict.fromkeys((TRAIN, VALIDATION, TEST), store), size, augment)


def draw(random: np.random.Generator, height: int, width: int) -> tuple[NDArray[np.uint8], list[Box]]:
    """Draws an image [H, W, 3] and returns the boxes of its shapes, which overlap little."""
    ground = random.uniform(60, 200, 3)
    image = np.clip(ground + random.normal(0, 12, (height, width, 3)), 0, 255)
    boxes: list[Box] = []
    for _ in range(int(random.integers(1, MOST + 1))):
        kind = int(random.integers(len(CLASSES)))
        side = float(random.uniform(0.16, 0.42) * min(height, width))
        colour = random.uniform(0, 255, 3)
        while np.abs(colour - ground).max() < 70:
            colour = random.uniform(0, 255, 3)
        for _ in range(_TRIES):
            left, top = float(random.uniform(0, width - side)), float(random.uniform(0, height - side))
            if all(_apart((left, top, side, side), other.box) for other in boxes):
                cover = _cover(kind, left, top, side, height, width)[..., None]
                image = image * (1 - cover) + colour * cover
                boxes.append(Box((left, top, side, side), kind + 1, side * side))
                break
    return image.round().astype(np.uint8), boxes


def _apart(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Returns whether two boxes share no more than a fifth of the smaller one."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    tall = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(wide, 0) * max(tall, 0) <= 0.2 * min(a[2] * a[3], b[2] * b[3])


def _cover(kind: int, left: float, top: float, side: float, height: int, width: int) -> NDArray[np.float64]:
    """Returns how much of every pixel [H, W] a shape covers, 0 to 1."""
    fine = (np.arange(_FINE) + 0.5) / _FINE
    y = ((np.arange(height)[:, None] + fine).ravel() - top) / side
    x = ((np.arange(width)[:, None] + fine).ravel() - left) / side
    rows, columns = y[:, None], x[None]
    if kind == 0:
        inside = (rows - 0.5) ** 2 + (columns - 0.5) ** 2 <= 0.25
    else:
        inside = (rows >= 0) & (rows <= 1) & (columns >= 0) & (columns <= 1)
        if kind == 2:
            inside = inside & (np.abs(columns - 0.5) <= rows / 2)
    return inside.reshape(height, _FINE, width, _FINE).mean((1, 3))

"""1,797 real handwritten digits (8 x 8), drawn at random positions and sizes on a larger canvas.

The digits come with the package (digits.npz, no download): they are the test part of the UCI data set "Optical
Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, licence CC BY 4.0), in the order of scikit-learn's
`load_digits`. Random positions make the task harder: a pixel no longer belongs to a fixed part of a digit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import whole_number
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population

CLASSES = tuple("0123456789")
SCALE = (1.0, 1.5)
SMALLEST = int(8 * SCALE[1])
MEAN, STD = 0.1214, 0.2470


@dataclass(frozen=True)
class Placed:
    """Digits [N, 8, 8] in 0..1 with their labels, and the position of each: centre (y, x) in pixels, and scale [N]."""

    digits: Tensor
    labels: NDArray[np.int64]
    centre: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return len(self.digits)


def originals() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the digits as they were scanned: ink [1797, 8, 8] from 0 to 16, and labels [1797]."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        return file["images"], file["labels"].astype(np.int64)


def placed(canvas: int, seed: int) -> Placed:
    """Gives the digits random positions and sizes at which every digit fits on an image of canvas x canvas."""
    whole_number("canvas", canvas, least=SMALLEST)
    whole_number("placement_seed", seed, least=0)
    images, labels = originals()
    random = np.random.default_rng(seed)
    scale = random.uniform(*SCALE, size=len(images))
    half = 4 * scale[:, None]
    centre = half + random.uniform(size=(len(scale), 2)) * (canvas - 2 * half)
    return Placed(_float(images / 16.0), labels, _float(centre), _float(scale))


def _float(array: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(array).to(torch.float32)


def draw(placed: Placed, canvas: int, shift: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    """Draws images [N, canvas, canvas] in 0..1, with all digits moved by `shift` (y, x) pixels.

    Between the digits' pixels it interpolates bilinearly.
    """
    pixel = torch.arange(canvas, dtype=torch.float32) + 0.5
    # The position of every canvas pixel in the digit's own coordinates, -1..1 over its 8 pixels.
    y, x = (
        (pixel[None] - (placed.centre[:, axis, None] + shift[axis])) / (4 * placed.scale[:, None]) for axis in (0, 1)
    )
    grid = torch.stack([x[:, None, :].expand(-1, canvas, -1), y[:, :, None].expand(-1, -1, canvas)], dim=-1)
    return grid_sample(placed.digits[:, None], grid, mode="bilinear", align_corners=False)[:, 0]


def population(labels: NDArray[np.int64], numbers: Iterable[int]) -> Population:
    """Returns the names of the samples. `digits` and `digits-events` share them, so equal splits mean equal samples."""
    return Population([f"digits/{number:04d}" for number in numbers], labels)


def load(folders: DataFolders, canvas: int = 16, placement_seed: int = 0) -> DataSet:
    """Loads the digits on a canvas.

    canvas: side of the image
    placement_seed: decides positions and sizes of the digits
    """
    drawn = placed(canvas, placement_seed)
    images = (draw(drawn, canvas) * 255).round().clamp(0, 255).to(torch.uint8)
    return DataSet(
        name="digits",
        source=ArraySource(images[:, None].contiguous()),
        population=population(drawn.labels, range(len(drawn))),
        classes=CLASSES,
        channels=1,
        size=(canvas, canvas),
        default_split="random:0",
        test_fraction=0.2,
        mean=(MEAN,),
        std=(STD,),
        augment=Augment(padding=2),
        settings={"canvas": canvas, "placement_seed": placement_seed},
    )

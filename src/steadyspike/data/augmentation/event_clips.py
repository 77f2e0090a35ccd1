"""Augmentations of event clips that spiking transformers publish: one operation per clip, the same for its frames.

Both functions move whole pixels (nearest neighbour), so that counts stay whole numbers, and fill empty pixels with 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from steadyspike.data.augmentation import affine_maps

OPERATIONS = ("identity", "shear_x", "translate_x", "translate_y", "rotate", "cutout")
BINS = 31  # strengths are drawn from this many equally spaced values


def one_of_six(x: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation of Spikformer, Spikingformer and QKFormer, for clips [B, T, C, H, W].

    Each clip gets one of: identity; shear of +-0.3 about the centre; shift of +-5 pixels in x or in y; rotation of +-30
    degrees; a square cutout of 0.1 to 11 percent of the area.
    """
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    chosen = torch.randint(0, len(OPERATIONS), (batch,), generator=generator)
    strength = torch.linspace(-1, 1, BINS)[torch.randint(0, BINS, (batch,), generator=generator)]
    area = 0.001 + (0.11 - 0.001) * torch.rand(batch, generator=generator)
    corner = torch.rand(batch, 2, generator=generator)
    x = x.clone()
    # torchvision uses the tangent of the shear and truncates a shift to whole pixels.
    _move(x, chosen == 1, affine_maps.shear_x_centre, (0.3 * strength).tan())
    _move(x, chosen == 2, affine_maps.translate_x, (5 * strength).trunc())
    _move(x, chosen == 3, affine_maps.translate_y, (5 * strength).trunc())
    _move(x, chosen == 4, affine_maps.rotate, 30 * strength)
    for i in torch.nonzero(chosen == OPERATIONS.index("cutout")).flatten().tolist():
        side = min(height, width, round(math.sqrt(float(area[i]) * height * width)))
        top, left = int(corner[i, 0] * (height - side + 1)), int(corner[i, 1] * (width - side + 1))
        x[i, ..., top : top + side, left : left + side] = 0
    return x


def one_of_three(x: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation of SpikingResformer, for clips [B, T, C, H, W].

    Each clip gets one of: a roll by up to a third of the side in both directions (pixels that leave at one side come
    back at the other); a rotation of +-30 degrees; a cutout of a third of each side, whose centre may be anywhere.
    """
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    chosen = torch.randint(0, 3, (batch,), generator=generator)
    most = height // 3
    roll = torch.randint(-most, most + 1, (batch, 2), generator=generator)
    degrees = 60 * torch.rand(batch, generator=generator) - 30
    centre = torch.rand(batch, 2, generator=generator)
    x = x.clone()
    for i in torch.nonzero(chosen == 0).flatten().tolist():
        x[i] = x[i].roll(roll[i].tolist(), (-2, -1))
    _move(x, chosen == 1, affine_maps.rotate, degrees)
    for i in torch.nonzero(chosen == 2).flatten().tolist():
        row, column = int(centre[i, 0] * height), int(centre[i, 1] * width)
        tall, wide = height // 3 // 2, width // 3 // 2
        x[i, ..., max(row - tall, 0) : row + tall, max(column - wide, 0) : column + wide] = 0
    return x


CLIP_AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "one-of-six": one_of_six,
    "one-of-three": one_of_three,
}


def _move(x: Tensor, chosen: Tensor, move: Callable[..., Tensor], values: Tensor) -> None:
    """Applies ``move`` in place to the chosen clips of ``x``."""
    mine = torch.nonzero(chosen).flatten()
    if len(mine):
        to = mine.to(x.device)
        x[to] = move(x[to], values[mine], interpolation="nearest")

"""The augmentation of event clips that Spikformer, Spikingformer and QKFormer publish: one operation per clip."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steadyspike.data.augmentation import affine_maps

OPERATIONS = ("identity", "shear_x", "translate_x", "translate_y", "rotate", "cutout")


def one_of_six(x: Tensor, generator: torch.Generator) -> Tensor:
    """Clips [B, T, C, H, W]: each gets one of identity, shear of +-0.3, shift of +-5 pixels in x or in y, rotation of
    +-30 degrees, a square cutout of 0.1 to 11 percent of the area; every frame of a clip the same."""
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    chosen = torch.randint(0, len(OPERATIONS), (batch,), generator=generator)
    strength = 2 * torch.rand(batch, generator=generator) - 1
    area = 0.001 + (0.11 - 0.001) * torch.rand(batch, generator=generator)
    corner = torch.rand(batch, 2, generator=generator)
    x = x.clone()
    for number, name in enumerate(OPERATIONS[1:-1], 1):
        mine = torch.nonzero(chosen == number).flatten()
        if len(mine):
            limit = {"shear_x": 0.3, "rotate": 30.0}.get(name, 5.0)
            value = strength[mine] * limit
            value = value.round() if name.startswith("translate") else value
            to = mine.to(x.device)
            x[to] = getattr(affine_maps, name)(x[to], value.to(x.device))
    for i in torch.nonzero(chosen == OPERATIONS.index("cutout")).flatten().tolist():
        side = min(height, width, round(math.sqrt(float(area[i]) * height * width)))
        top, left = int(corner[i, 0] * (height - side + 1)), int(corner[i, 1] * (width - side + 1))
        x[i, ..., top : top + side, left : left + side] = 0
    return x

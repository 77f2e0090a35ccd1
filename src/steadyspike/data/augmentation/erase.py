"""Random erasing (Zhong et al., 2017) with timm's limits, on normalised images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MODES = ("const", "pixel")
AREA, RATIO, ATTEMPTS = (0.02, 1 / 3), (0.3, 1 / 0.3), 10


def random_erase(x: Tensor, probability: float, mode: str, generator: torch.Generator) -> Tensor:
    """Erases a rectangle of float images [B, C, H, W] with ``probability``.

    The rectangle has 2 to 33 percent of the area and a ratio of sides of 0.3 to 3.3. Its pixels become 0 (``"const"``)
    or normal noise per pixel (``"pixel"``).

    If a rectangle does not fit, a new one is drawn, at most ten times.
    """
    batch, channels, height, width = x.shape
    used = torch.rand(batch, generator=generator) < probability
    area = AREA[0] + (AREA[1] - AREA[0]) * torch.rand(batch, ATTEMPTS, generator=generator)
    low, high = (math.log(r) for r in RATIO)
    ratio = torch.exp(low + (high - low) * torch.rand(batch, ATTEMPTS, generator=generator))
    tall = (area * height * width * ratio).sqrt().round().long()
    wide = (area * height * width / ratio).sqrt().round().long()
    corner = torch.rand(batch, 2, generator=generator)
    fits = (tall < height) & (wide < width)
    x = x.clone()
    for i in torch.nonzero(used & fits.any(1)).flatten().tolist():
        k = int(fits[i].int().argmax())
        h, w = int(tall[i, k]), int(wide[i, k])
        top, left = int(corner[i, 0] * (height - h + 1)), int(corner[i, 1] * (width - w + 1))
        value = torch.zeros(channels, h, w) if mode == "const" else torch.randn(channels, h, w, generator=generator)
        x[i, :, top : top + h, left : left + w] = value.to(x)
    return x

"""Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019) of a batch with itself in reverse order, as in timm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from steadyspike.data.errors import DataError


@dataclass(frozen=True)
class Mixing:
    """The settings of mixup and CutMix.

    mixup, cutmix: alpha of Beta(alpha, alpha); 0 turns it off
    prob: the share of batches that are mixed
    switch: the share of CutMix if both are used
    until: the first epoch without mixing (0: never)
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    switch: float = 0.5
    until: int = 0

    def __post_init__(self) -> None:
        if self.mixup < 0 or self.cutmix < 0:
            raise DataError(f"mixup and cutmix are not below 0, got {self.mixup} and {self.cutmix}")
        if not (0 <= self.prob <= 1 and 0 <= self.switch <= 1):
            raise DataError(f"prob and switch lie between 0 and 1, got {self.prob} and {self.switch}")

    def active(self, epoch: int) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and not (self.until and epoch >= self.until)

    def __call__(
        self, x: Tensor, labels: Tensor, classes: int, generator: torch.Generator, batch_dim: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Returns mixed x and probabilities [B, classes].

        x is [B, ...] (or [T, B, ...] with ``batch_dim=1``), labels is [B].
        """
        draws = torch.rand(4, generator=generator)
        cut = self.cutmix > 0 and (self.mixup == 0 or bool(draws[1] < self.switch))
        share = beta(self.cutmix if cut else self.mixup, generator)
        if not draws[0] < self.prob:
            share = 1.0
        other = x.flip(batch_dim)
        if share < 1 and cut:
            top, bottom, left, right = box(x.shape[-2], x.shape[-1], share, float(draws[2]), float(draws[3]))
            x = x.clone()
            x[..., top:bottom, left:right] = other[..., top:bottom, left:right]
            share = 1 - (bottom - top) * (right - left) / (x.shape[-2] * x.shape[-1])
        elif share < 1:
            x = x * share + other * (1 - share)
        mine = one_hot(labels, classes).float()
        return x, mine * share + mine.flip(0) * (1 - share)


def beta(alpha: float, generator: torch.Generator) -> float:
    """Draws one number from Beta(alpha, alpha), by two Gamma variables (Marsaglia and Tsang, 2000)."""
    first, second = _gamma(alpha, generator), _gamma(alpha, generator)
    return first / (first + second) if first + second > 0 else 0.5


def _gamma(alpha: float, generator: torch.Generator) -> float:
    if alpha < 1:
        u = float(torch.rand((), dtype=torch.float64, generator=generator))
        return _gamma(alpha + 1, generator) * u ** (1 / alpha)
    d = alpha - 1 / 3
    while True:
        z = float(torch.randn((), dtype=torch.float64, generator=generator))
        u = float(torch.rand((), dtype=torch.float64, generator=generator))
        v = (1 + z / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(max(u, 1e-300)) < 0.5 * z * z + d - d * v + d * math.log(v):
            return d * v


def box(height: int, width: int, share: float, row: float, column: float) -> tuple[int, int, int, int]:
    """Returns (top, bottom, left, right) of a box of (1 - share) of the area, cut at the border.

    Its centre is given as 0..1 of each side.
    """
    ratio = math.sqrt(1 - share)
    tall, wide = int(height * ratio), int(width * ratio)
    middle_y, middle_x = int(row * height), int(column * width)
    top, bottom = max(middle_y - tall // 2, 0), min(middle_y + tall // 2, height)
    left, right = max(middle_x - wide // 2, 0), min(middle_x + wide // 2, width)
    return top, bottom, left, right

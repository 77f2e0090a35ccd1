"""Geometric operations on images [B, C, H, W] or clips [B, T, C, H, W]: one affine map per sample, as in Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steadyspike.data.errors import DataError

Fill = float | Sequence[float]  # one value, or one per channel


def _cubic(d: Tensor) -> tuple[Tensor, ...]:
    """Returns the weights of the pixels at -1, 0, 1, 2, counted from the left one: Pillow's cubic with a = -1."""
    square, cube = d * d, d * d * d
    return 2 * square - d - cube, 1 - 2 * square + cube, d + square - cube, cube - square


# For each kernel: the pixels around a coordinate, counted from the one at its left, and their weights by the distance
# 0..1.
_TAPS = {
    "nearest": (0, lambda d: (torch.ones_like(d),)),
    "bilinear": (0, lambda d: (1 - d, d)),
    "bicubic": (-1, _cubic),
}
INTERPOLATIONS = tuple(_TAPS)


def affine(x: Tensor, matrix: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    """Returns the image whose pixel (column, row) is read from the coordinate ``matrix`` (column, row, 1).

    matrix: [B, 2, 3], as in Pillow's AFFINE

    Pixel centres have coordinates 0.5, 1.5, ... A pixel whose source coordinate is outside of the image gets ``fill``.
    Near the border, missing neighbours are copies of the border pixels. The dtype stays the same.
    """
    if interpolation not in _TAPS:
        raise DataError(f"interpolation must be {', '.join(INTERPOLATIONS)}, not {interpolation!r}")
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    flat = x.reshape(batch, -1, height * width).float()
    # Computed in float64 and rounded, so that coordinates are equal on every device; otherwise nearest pixels could
    # differ.
    grid = torch.ones(3, height, width, dtype=torch.float64)
    grid[0], grid[1] = torch.arange(width) + 0.5, (torch.arange(height) + 0.5)[:, None]
    source = (matrix.to("cpu", torch.float64) @ grid.flatten(1)).mul_(2**20).round_().div_(2**20)
    inside = (source >= 0).all(1) & (source[:, 0] < width) & (source[:, 1] < height)
    first, weights = _TAPS[interpolation]
    source = source if interpolation == "nearest" else source - 0.5
    low = source.floor()
    across, down = (weights((source[:, axis] - low[:, axis]).to(x.device, torch.float32)) for axis in (0, 1))
    low = low.to(x.device, torch.int64) + first
    moved = torch.zeros_like(flat)
    for i, by_row in enumerate(down):
        row = (low[:, 1] + i).clamp(0, height - 1) * width
        for j, by_column in enumerate(across):
            index = row + (low[:, 0] + j).clamp(0, width - 1)
            moved += (by_row * by_column)[:, None] * flat.gather(2, index[:, None].expand(-1, flat.shape[1], -1))
    if not x.is_floating_point():
        # Pillow truncates, so a whole number must not become slightly smaller
        moved = (moved + (2**-10)).floor_().clamp_(0, 255)
    moved = torch.where(inside.to(x.device)[:, None], moved, _fill(fill, x))
    return moved.to(x.dtype).view(x.shape)


def _fill(fill: Fill, x: Tensor) -> Tensor:
    """Returns ``fill`` as [channels, 1]; for a clip it is repeated for every frame."""
    values = torch.tensor(fill, dtype=torch.float32, device=x.device).reshape(-1)
    return values.repeat(x[0, ..., 0, 0].numel() // len(values))[:, None]


def _rows(*entries: Tensor | float) -> Tensor:
    """Builds [B, 2, 3] from six entries, each [B] or a number."""
    tensors = [e for e in entries if isinstance(e, Tensor)]
    full = [
        e.double() if isinstance(e, Tensor) else torch.full_like(tensors[0], e, dtype=torch.float64) for e in entries
    ]
    return torch.stack(full, 1).view(-1, 2, 3)


def shear_x(x: Tensor, factor: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    return affine(x, _rows(1.0, factor, 0.0, 0.0, 1.0, 0.0), fill, interpolation)


def shear_x_centre(x: Tensor, factor: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    """A shear. The middle row does not move, as in torchvision; with Pillow's AFFINE the first row would not move."""
    return affine(x, _rows(1.0, factor, factor * (-x.shape[-2] / 2), 0.0, 1.0, 0.0), fill, interpolation)


def shear_y(x: Tensor, factor: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    return affine(x, _rows(1.0, 0.0, 0.0, factor, 1.0, 0.0), fill, interpolation)


def translate_x(x: Tensor, pixels: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    return affine(x, _rows(1.0, 0.0, pixels, 0.0, 1.0, 0.0), fill, interpolation)


def translate_y(x: Tensor, pixels: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    return affine(x, _rows(1.0, 0.0, 0.0, 0.0, 1.0, pixels), fill, interpolation)


def rotate(x: Tensor, degrees: Tensor, fill: Fill = 0.0, interpolation: str = "bilinear") -> Tensor:
    """A counter-clockwise rotation about the centre."""
    angle = -degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = x.shape[-1] / 2, x.shape[-2] / 2
    shift_x = middle_x - cos * middle_x - sin * middle_y
    shift_y = middle_y + sin * middle_x - cos * middle_y
    return affine(x, _rows(cos, sin, shift_x, -sin, cos, shift_y), fill, interpolation)

"""Geometric operations on images [B, C, H, W] or clips [B, T, C, H, W]: one affine map per sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def affine(x: Tensor, matrix: Tensor, fill: float = 0.0) -> Tensor:
    """The image whose pixel (column, row) comes from ``matrix`` [B, 2, 3] applied to it, as in Pillow's AFFINE.

    Pixel centres are at half numbers; bilinear; ``fill`` where the map leaves the image. Keeps the dtype.
    """
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    flat = x.reshape(batch, -1, height, width)
    # From pixels to grid_sample's -1..1: u = 2 column / width - 1.
    scale = torch.tensor([[width / 2, 0, width / 2], [0, height / 2, height / 2], [0, 0, 1]], dtype=torch.float64)
    bottom = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(batch, 1, 3)
    square = torch.cat([matrix.to("cpu", torch.float64), bottom], 1)
    theta = (scale.inverse() @ square @ scale)[:, :2].to(x.device, torch.float32)
    grid = affine_grid(theta, list(flat.shape), align_corners=False)
    moved = grid_sample(flat.float() - fill, grid, align_corners=False) + fill
    if not x.is_floating_point():
        moved = moved.round().clamp(0, 255)
    return moved.to(x.dtype).view(x.shape)


def _rows(*entries: Tensor | float) -> Tensor:
    """[B, 2, 3] from six entries, each [B] or a number."""
    tensors = [e for e in entries if isinstance(e, Tensor)]
    full = [
        e.double() if isinstance(e, Tensor) else torch.full_like(tensors[0], e, dtype=torch.float64) for e in entries
    ]
    return torch.stack(full, 1).view(-1, 2, 3)


def shear_x(x: Tensor, factor: Tensor, fill: float = 0.0) -> Tensor:
    return affine(x, _rows(1.0, factor, 0.0, 0.0, 1.0, 0.0), fill)


def shear_y(x: Tensor, factor: Tensor, fill: float = 0.0) -> Tensor:
    return affine(x, _rows(1.0, 0.0, 0.0, factor, 1.0, 0.0), fill)


def translate_x(x: Tensor, pixels: Tensor, fill: float = 0.0) -> Tensor:
    return affine(x, _rows(1.0, 0.0, pixels, 0.0, 1.0, 0.0), fill)


def translate_y(x: Tensor, pixels: Tensor, fill: float = 0.0) -> Tensor:
    return affine(x, _rows(1.0, 0.0, 0.0, 0.0, 1.0, pixels), fill)


def rotate(x: Tensor, degrees: Tensor, fill: float = 0.0) -> Tensor:
    """Counter-clockwise about the centre."""
    angle = -degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = x.shape[-1] / 2, x.shape[-2] / 2
    shift_x = middle_x - cos * middle_x - sin * middle_y
    shift_y = middle_y + sin * middle_x - cos * middle_y
    return affine(x, _rows(cos, sin, shift_x, -sin, cos, shift_y), fill)

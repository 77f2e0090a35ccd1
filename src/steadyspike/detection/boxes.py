"""Boxes as tensors [..., 4]: corners (left, top, right, bottom), or centre and size (x, y, width, height)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EPS = 1e-7


def to_corners(boxes: Tensor) -> Tensor:
    """Converts (x, y, width, height) about the centre to (left, top, right, bottom)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def to_centre(boxes: Tensor) -> Tensor:
    """Converts (left, top, right, bottom) to (x, y, width, height) about the centre."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def area(corners: Tensor) -> Tensor:
    """Returns width times height of corner boxes; 0 if a side is negative."""
    return (corners[..., 2:] - corners[..., :2]).clamp(min=0).prod(-1)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns intersection over union of corner boxes a [n, 4] with b [m, 4]: [n, m]; 0 if both are empty."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    union = area(a)[:, None] + area(b)[None] - both
    return torch.where(union > 0, both / union.clamp(min=torch.finfo(union.dtype).tiny), both.new_zeros(()))


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns CIoU (Zheng et al., 2020) of centre boxes a and b, pair by pair: [n, 4], [n, 4] -> [n].

        CIoU = IoU - d^2 / c^2 - alpha * v,   v = 4 / pi^2 (atan(w_b / h_b) - atan(w_a / h_a))^2

    d is the distance of the centres, and c the diagonal of the smallest box around both. alpha = v / (1 - IoU + v)
    passes no gradient, as in the code of YOLOv5.
    """
    first, second = to_corners(a), to_corners(b)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    wide, tall = (a[..., 2], b[..., 2]), (a[..., 3] + _EPS, b[..., 3] + _EPS)
    iou = both / (wide[0] * tall[0] + wide[1] * tall[1] - both + _EPS)
    around = torch.maximum(first[..., 2:], second[..., 2:]) - torch.minimum(first[..., :2], second[..., :2])
    distance = (a[..., :2] - b[..., :2]).square().sum(-1) / (around.square().sum(-1) + _EPS)
    v = 4 / math.pi**2 * (torch.atan(wide[1] / tall[1]) - torch.atan(wide[0] / tall[0])).square()
    with torch.no_grad():
        alpha = v / (v - iou + (1 + _EPS))
    return iou - distance - alpha * v

"""Decodes a network's maps into boxes, with the formulas of YOLOv5."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def cell_boxes(raw: Tensor, anchors: Tensor) -> Tensor:
    """Converts raw outputs [n, 4] of cells to boxes [n, 4] in cells, centre relative to the cell's corner.

        xy = 2 sigmoid(raw) - 0.5,   wh = (2 sigmoid(raw))^2 * anchor

    anchors: [n, 2] in cells
    """
    squashed = raw.sigmoid()
    return torch.cat([squashed[..., :2] * 2 - 0.5, (squashed[..., 2:] * 2).square() * anchors], -1)


def decode(maps: Sequence[Tensor], anchors: Tensor, strides: Sequence[int]) -> Tensor:
    """Returns all boxes of a batch: maps [B, A, H, W, 5 + K] -> [B, boxes, 5 + K].

    A row is centre and size in pixels of the input, the probability of an object, and K class probabilities.

    anchors: [maps, A, 2] in pixels
    """
    decoded = []
    for raw, own, stride in zip(maps, anchors, strides):
        height, width = raw.shape[2:4]
        rows, columns = torch.arange(height, device=raw.device), torch.arange(width, device=raw.device)
        corner = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).to(raw.dtype)
        boxes = cell_boxes(raw[..., :4], (own / stride)[:, None, None])
        boxes_in_pixels = torch.cat([boxes[..., :2] + corner, boxes[..., 2:]], -1) * stride
        decoded.append(torch.cat([boxes_in_pixels, raw[..., 4:].sigmoid()], -1).flatten(1, 3))
    return torch.cat(decoded, 1)

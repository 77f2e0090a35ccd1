"""Non-maximum suppression, class by class, and the list of detections of an image."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.detection.boxes import pairwise_iou, to_corners

_BLOCK = 256  # the number of boxes that are compared with each other at a time


class Detections(NamedTuple):
    """The detected boxes of one image, best first.

    boxes: corners [n, 4]
    scores, classes: [n]
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor


@torch.no_grad()
def suppress(
    boxes: Tensor, scores: Tensor, overlap: float, most: int | None = None, classes: Tensor | None = None
) -> Tensor:
    """Indices of the boxes (corners [n, 4]) to keep, best first: none overlaps a better one by more than ``overlap``.

    If scores are equal, the first is better.

    most: stop after this many boxes
    classes: [n]; a box is compared only with boxes of its class


    (YOLOv5 moves the classes 4096 pixels apart for this, which rounds the corners of the boxes.)
    """
    order = scores.argsort(descending=True, stable=True)
    kept = order[:0]
    for block in order.split(_BLOCK):
        free = ~_covered(block, kept, boxes, overlap, classes).any(1)
        among = _covered(block, block, boxes, overlap, classes).cpu().numpy()
        alive = free.cpu().numpy()
        for index in range(len(alive)):  # sequentially, because only a box that is kept suppresses later ones
            if alive[index]:
                alive[index + 1 :] &= ~among[index, index + 1 :]
        kept = torch.cat([kept, block[torch.from_numpy(alive).to(block.device)]])
        if most is not None and len(kept) >= most:
            break
    return kept if most is None else kept[:most]


def _covered(first: Tensor, second: Tensor, boxes: Tensor, overlap: float, classes: Tensor | None) -> Tensor:
    """Returns [n, m]: whether boxes ``first`` and ``second`` (indices), of one class, overlap too much."""
    much = pairwise_iou(boxes[first], boxes[second]) > overlap
    return much if classes is None else much & (classes[first][:, None] == classes[second][None])


@torch.no_grad()
def detections(
    decoded: Tensor,
    *,
    confidence: float = 0.001,
    overlap: float = 0.6,
    most: int = 300,
    candidates: int = 30_000,
    multi_label: bool = True,
) -> list[Detections]:
    """Returns the detections of each image of a batch from `decode`'s rows [B, boxes, 5 + K].

    confidence: smallest product of object and class probability
    overlap: IoU above which the worse of two boxes of one class is dropped
    most: the largest number of boxes kept in an image
    candidates: only this many boxes with the best scores are considered
    multi_label: a box counts for every class above ``confidence``; if False, only for its best class
    """
    per_image = []
    for rows in decoded:
        rows = rows[rows[:, 4] > confidence]
        shares = rows[:, 5:] * rows[:, 4:5]
        if multi_label and shares.shape[1] > 1:
            box, label = (shares > confidence).nonzero(as_tuple=True)
        else:
            label = shares.argmax(-1) if len(shares) else shares.new_zeros(0, dtype=torch.long)
            box = torch.arange(len(shares), device=shares.device)
            likely = shares[box, label] > confidence
            box, label = box[likely], label[likely]
        scores, corners = shares[box, label], to_corners(rows[box, :4])
        best = scores.argsort(descending=True, stable=True)[:candidates]
        corners, scores, label = corners[best], scores[best], label[best]
        kept = suppress(corners, scores, overlap, most, label)
        per_image.append(Detections(corners[kept], scores[kept], label[kept]))
    return per_image

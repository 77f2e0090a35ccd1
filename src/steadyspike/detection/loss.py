"""The detection loss of YOLOv5 and EMS-YOLO: boxes by CIoU, objects and classes by cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import one_hot

from steadyspike.detection.assignment import MOST_RATIO, Matches, assign
from steadyspike.detection.boxes import complete_iou
from steadyspike.detection.decoding import cell_boxes

BALANCE = (4.0, 1.0, 0.25, 0.06, 0.02)  # weights of the maps' objectness, from the finest to the coarsest


@dataclass(frozen=True)
class Gains:
    """Factors of the three parts of the loss."""

    box: float = 0.05
    obj: float = 1.0
    cls: float = 0.5

    def scaled(self, maps: int, classes: int, size: tuple[int, int]) -> Gains:
        """Returns the published gains: box * 3 / maps, cls * 3 / maps * classes / 80, obj * 3 / maps * pixels / 640^2.

        With few classes and small images two of them become very small. A small data set may therefore need the plain
        gains.
        """
        share = 3 / maps
        pixels = size[0] * size[1] / 640**2
        return Gains(self.box * share, self.obj * share * pixels, self.cls * share * classes / 80)


class DetectionLoss(NamedTuple):
    """total: the sum to minimise, per image
    box, obj, cls: its parts with their gains
    """

    total: Tensor
    box: Tensor
    obj: Tensor
    cls: Tensor


def detection_loss(
    maps: Sequence[Tensor],
    targets: Tensor,
    anchors: Tensor,
    strides: Sequence[int],
    gains: Gains,
    most_ratio: float = MOST_RATIO,
) -> DetectionLoss:
    """Computes the loss of a batch.

    maps: [B, A, H, W, 5 + K] per scale, finest first
    targets: [n, 6], image, class, centre and size in pixels of the input
    anchors: [maps, A, 2] in pixels

    The parts of the loss:

    box: mean of 1 - CIoU over all matches of a map
    obj: cross-entropy over all cells; the target is the CIoU of the match, without gradient and not below 0 (if several
        matches share an element, the last is used)
    cls: cross-entropy over the classes of the matches; 0 if there is only one class
    """
    zero = maps[0].new_zeros(())
    box, obj, cls = zero, zero, zero
    for raw, own, stride, weight in zip(maps, anchors, strides, BALANCE):
        matches = assign(targets, own, stride, (raw.shape[2], raw.shape[3]), most_ratio)
        objectness = raw.new_zeros(raw.shape[:4])
        if len(matches.image):
            there = raw[matches.image, matches.anchor, matches.row, matches.column]
            overlap = complete_iou(cell_boxes(there[:, :4], matches.anchors), matches.boxes)
            box = box + (1 - overlap).mean()
            objectness = _written(objectness, matches, overlap.detach().clamp(min=0))
            classes = raw.shape[-1] - 5
            if classes > 1:
                cls = cls + bce(there[:, 5:], one_hot(matches.classes, classes).to(there.dtype))
        obj = obj + weight * bce(raw[..., 4], objectness)
    parts = (gains.box * box, gains.obj * obj, gains.cls * cls)
    return DetectionLoss(parts[0] + parts[1] + parts[2], *(part.detach() for part in parts))


def _written(target: Tensor, matches: Matches, values: Tensor) -> Tensor:
    """Returns ``values`` at the elements of the matches.

    If several share an element, the last one, on every device and in every run.
    """
    _, anchors, height, width = target.shape
    index = ((matches.image * anchors + matches.anchor) * height + matches.row) * width + matches.column
    order = index.argsort(stable=True)
    ordered = index[order]
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    flat = target.flatten()
    flat[ordered[last]] = values[order[last]].to(flat.dtype)
    return flat.view_as(target)

"""Assigns true boxes to cells and anchors of a feature map (the rule of YOLOv5)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MOST_RATIO = 4.0
_REACH = 0.5  # the largest distance from a cell's edge at which a centre is also assigned to the neighbour on that side


class Matches(NamedTuple):
    """n pairs of a true box and an element (cell and anchor) of one map.

    image, anchor, row, column: [n], the element
    boxes: [n, 4], centre relative to the cell's corner, and size, both in cells
    anchors: [n, 2], the anchor's size in cells
    classes: [n]
    """

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    boxes: Tensor
    anchors: Tensor
    classes: Tensor


def assign(
    targets: Tensor, anchors: Tensor, stride: int, size: tuple[int, int], most_ratio: float = MOST_RATIO
) -> Matches:
    """Returns the elements of one map that are assigned to each true box.

    targets: [n, 6], image of the batch, class, and centre and size in pixels of the network's input
    anchors: [A, 2] in pixels
    size: (height, width) of the map in cells

    A box belongs to every anchor whose sides are less than ``most_ratio`` times longer or shorter. It is assigned to
    the cell that contains its centre, and to the nearest neighbours left or right and above or below, if these exist.
    """
    height, width = size
    cells = anchors / stride
    boxes = targets[:, 2:] / stride
    ratio = boxes[None, :, 2:] / cells[:, None]
    anchor, target = (torch.maximum(ratio, 1 / ratio).amax(-1) < most_ratio).nonzero(as_tuple=True)
    centre = boxes[target, :2]
    from_end = centre.new_tensor([width, height]) - centre
    near_start = (centre % 1 < _REACH) & (centre > 1)
    near_end = (from_end % 1 < _REACH) & (from_end > 1)
    chosen = torch.stack([torch.ones_like(near_start[:, 0]), *near_start.T, *near_end.T])
    moves = centre.new_tensor([[0, 0], [-_REACH, 0], [0, -_REACH], [_REACH, 0], [0, _REACH]])
    move, which = chosen.nonzero(as_tuple=True)
    anchor, target = anchor[which], target[which]
    corner = (boxes[target, :2] + moves[move]).long()
    corner = torch.minimum(corner.clamp(min=0), corner.new_tensor([width - 1, height - 1]))
    return Matches(
        image=targets[target, 0].long(),
        anchor=anchor,
        row=corner[:, 1],
        column=corner[:, 0],
        boxes=torch.cat([boxes[target, :2] - corner, boxes[target, 2:]], -1),
        anchors=cells[anchor],
        classes=targets[target, 1].long(),
    )

"""Matches detections with true boxes as COCO's evaluation does: per image and class, best score first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_POINTS = np.linspace(0.0, 1.0, 101)
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
MOST = (1, 10, 100)
_SMALLEST = min(IOU_THRESHOLDS)


class Matched(NamedTuple):
    """The result for one image and class.

    scores: [n], best first
    hit, ignored: [areas, thresholds, n]
    positives: [areas]

    hit: the detection matches a true box
    ignored: it counts neither as right nor as wrong
    positives: the number of true boxes to detect
    """

    scores: Floats
    hit: Flags
    ignored: Flags
    positives: NDArray[np.int64]


def box_iou(detected: Floats, true: Floats, crowd: Flags) -> Floats:
    """Returns the IoU of boxes (left, top, width, height) [n, 4] and [m, 4].

    For a crowd it is the share of ``detected`` that is inside.
    """
    low = np.maximum(detected[:, None, :2], true[None, :, :2])
    high = np.minimum(detected[:, None, :2] + detected[:, None, 2:], true[None, :, :2] + true[None, :, 2:])
    sides = high - low
    both = np.where((sides > 0).all(-1), sides[..., 0] * sides[..., 1], 0.0)
    own, other = detected[:, 2] * detected[:, 3], true[:, 2] * true[:, 3]
    union = np.where(crowd[None], own[:, None], own[:, None] + other[None] - both)
    return np.divide(both, union, out=np.zeros_like(both), where=both > 0)


def match(boxes: Floats, scores: Floats, true: Floats, areas: Floats, crowd: Flags) -> Matched:
    """Matches the detections of one image and class.

    boxes, true: (left, top, width, height)
    scores: of the boxes
    areas, crowd: of the true boxes

    Each detection, from the best score on, takes the free true box that it overlaps most. This is done separately for
    every IoU threshold and range of areas. Boxes outside a range and crowds are ignored: they are matched only if no
    other box is possible, and a crowd may be matched any number of times.
    """
    order = np.argsort(-scores, kind="mergesort")[: MOST[-1]]
    boxes, scores = boxes[order], scores[order]
    limits = np.array(list(AREAS.values()))
    outside = (areas[None] < limits[:, :1]) | (areas[None] > limits[:, 1:])
    ignore = outside | crowd[None]
    shape = (len(limits), len(IOU_THRESHOLDS), len(boxes))
    hit, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    if len(true) and len(boxes):
        overlap = box_iou(boxes, true, crowd)
        least = np.minimum(IOU_THRESHOLDS, 1 - 1e-10)[None, :, None]
        free = np.ones((len(limits), len(IOU_THRESHOLDS), len(true)), bool)
        counted = ~ignore[:, None]
        for d in np.flatnonzero(overlap.max(1) >= _SMALLEST):
            possible = (overlap[d] >= least) & (free | crowd)
            chosen, any_wanted = _largest(possible & counted, overlap[d])
            second, any_ignored = _largest(possible & ~counted, overlap[d])
            chosen = np.where(any_wanted, chosen, second)
            hit[..., d] = any_wanted | any_ignored
            ignored[..., d] = ~any_wanted & any_ignored
            area, threshold = np.nonzero(hit[..., d])
            free[area, threshold, chosen[area, threshold]] = False
    size = boxes[:, 2] * boxes[:, 3]
    ignored |= ~hit & ((size[None] < limits[:, :1]) | (size[None] > limits[:, 1:]))[:, None]
    return Matched(scores, hit, ignored, (~ignore).sum(1))


def _largest(possible: Flags, overlap: Floats) -> tuple[NDArray[np.int64], Flags]:
    """Index of the possible box with the largest overlap (the last if several are equal), and whether there is one."""
    masked = np.where(possible, overlap, -1.0)[..., ::-1]
    return possible.shape[-1] - 1 - masked.argmax(-1), np.asarray(possible.any(-1))

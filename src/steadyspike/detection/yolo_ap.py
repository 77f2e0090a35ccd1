"""`yolo_ap`: the mAP that YOLO's training code prints, which is another metric than COCO's."""

from __future__ import annotations

from typing import Any

import numpy as np

from steadyspike.detection.coco_matching import IOU_THRESHOLDS, Flags, Floats, box_iou
from steadyspike.detection.results import ResultsLike, TruthLike, as_results, as_truth

_POINTS = np.linspace(0, 1, 101)
_MOST = 300


def yolo_ap(truth: TruthLike, results: ResultsLike) -> dict[str, float]:
    """Returns {"yolo_AP50": ..., "yolo_AP": ...}: what YOLOv5's validation calls mAP@.5 and mAP@.5:.95.

    It differs from COCO's AP (`mean_ap`) in five points:

    - A detection belongs to the true box of its class that it overlaps most, if by at least .5. If several detections
      belong to one box, the one with the highest score counts, for all thresholds.
    - Crowds are left out.
    - Sizes do not matter.
    - Up to 300 detections of an image count.
    - Precision is interpolated linearly between recalls, with precision 1 at recall 0, and integrated by trapezoids.
    """
    truth_table, detected = as_truth(truth), as_results(results)
    plain = ~truth_table.crowd
    right: list[Flags] = []
    scores: list[Floats] = []
    labels: list[Any] = []
    for image in sorted(truth_table.images):
        t = np.flatnonzero((truth_table.image == image) & plain)
        f = np.flatnonzero(detected.image == image)
        f = f[np.argsort(-detected.scores[f], kind="mergesort")[:_MOST]]
        overlap = box_iou(detected.boxes[f], truth_table.boxes[t], np.zeros(len(t), bool))
        overlap = np.where(detected.category[f][:, None] == truth_table.category[t][None], overlap, 0.0)
        right.append(_matched_once(overlap))
        scores.append(detected.scores[f])
        labels.append(detected.category[f])
    classes = [c for c in truth_table.categories if (truth_table.category[plain] == c).any()]
    if not classes:
        return {"yolo_AP50": -1.0, "yolo_AP": -1.0}
    counts = {c: int((truth_table.category[plain] == c).sum()) for c in classes}
    table = _per_class(np.concatenate(right), np.concatenate(scores), np.concatenate(labels), counts)
    return {"yolo_AP50": float(table[:, 0].mean()), "yolo_AP": float(table.mean())}


def _matched_once(overlap: Floats) -> Flags:
    """Returns [detections, thresholds]: whether the true box that a detection was matched with overlaps it enough.

    overlap: [detections in order of falling scores, true boxes], 0 if the classes differ
    """
    right = np.zeros((len(overlap), len(IOU_THRESHOLDS)), bool)
    rows, columns = np.nonzero(overlap >= IOU_THRESHOLDS[0])
    # if several overlaps are equal, the last box, as published
    order = np.argsort(overlap[rows, columns], kind="stable")[::-1]
    rows, columns = rows[order], columns[order]
    best = np.unique(rows, return_index=True)[1]  # the best box of every detection
    rows, columns = rows[best], columns[best]  # `unique` sorts, so these are in the order of scores again
    owner = np.unique(columns, return_index=True)[1]  # for every box, the detection with the highest score
    rows, columns = rows[owner], columns[owner]
    right[rows] = overlap[rows, columns][:, None] >= IOU_THRESHOLDS
    return right


def _per_class(right: Flags, scores: Floats, labels: Any, counts: dict[int, int]) -> Floats:
    """Returns [classes, thresholds]: the average precision."""
    table = np.zeros((len(counts), len(IOU_THRESHOLDS)))
    order = np.argsort(-scores, kind="mergesort")
    right, labels = right[order], labels[order]
    for k, (category, count) in enumerate(counts.items()):
        own = right[labels == category]
        if not len(own):
            continue
        hits = own.cumsum(0)
        reached, sharp = hits / (count + 1e-16), hits / np.arange(1, len(own) + 1)[:, None]
        for t in range(len(IOU_THRESHOLDS)):
            recall = np.concatenate([[0.0], reached[:, t], [1.0]])
            precision = np.concatenate([[1.0], sharp[:, t], [0.0]])
            precision = np.maximum.accumulate(precision[::-1])[::-1]
            table[k, t] = np.trapezoid(np.interp(_POINTS, recall, precision), _POINTS)
    return table

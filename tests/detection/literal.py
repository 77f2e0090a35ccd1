"""Slow, literal versions of what steadyspike.detection computes: loops over single boxes, no tensors of many."""

from __future__ import annotations

import itertools
import math


def iou(a, b):
    """Corner boxes."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or tall <= 0:
        return 0.0
    both = wide * tall
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def corners(box):
    x, y, w, h = box
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def ciou(a, b):
    """Centre boxes, by the formula of the paper."""
    p, q = corners(a), corners(b)
    overlap = iou(p, q)
    distance = (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
    wide = max(p[2], q[2]) - min(p[0], q[0])
    tall = max(p[3], q[3]) - min(p[1], q[1])
    v = 4 / math.pi**2 * (math.atan(b[2] / b[3]) - math.atan(a[2] / a[3])) ** 2
    alpha = v / (1 - overlap + v) if v else 0.0
    return overlap - distance / (wide**2 + tall**2) - alpha * v


def assign(targets, anchors, stride, height, width, ratio=4.0):
    """The set of (image, class, anchor, row, column, target number), one target, anchor and neighbour at a time."""
    actual = []
    for number, (image, label, x, y, w, h) in enumerate(targets):
        gx, gy = x / stride, y / stride
        for anchor, (aw, ah) in enumerate(anchors):
            if max(w / aw, aw / w, h / ah, ah / h) >= ratio:
                continue
            cells = [(int(gx), int(gy))]
            if gx % 1 < 0.5 and gx > 1:
                cells.append((int(gx - 0.5), int(gy)))
            if gy % 1 < 0.5 and gy > 1:
                cells.append((int(gx), int(gy - 0.5)))
            if (width - gx) % 1 < 0.5 and width - gx > 1:
                cells.append((int(gx + 0.5), int(gy)))
            if (height - gy) % 1 < 0.5 and height - gy > 1:
                cells.append((int(gx), int(gy + 0.5)))
            for column, row in cells:
                actual.append((int(image), int(label), anchor, min(row, height - 1), min(column, width - 1), number))
    return actual


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def bce(logit, target):
    p = sigmoid(logit)
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def suppress(boxes, scores, classes, overlap):
    """Indices of the boxes that stay, best first."""
    order = sorted(range(len(boxes)), key=lambda i: (-scores[i], i))
    kept = []
    for i in order:
        if all(classes[i] != classes[j] or iou(boxes[i], boxes[j]) <= overlap for j in kept):
            kept.append(i)
    return kept


def yolo_matching(detections, labels, least=0.5):
    """The IoU by which each detection counts, 0 if it does not: the matching of YOLOv5's and EMS-YOLO's validation.

    detections: (corner box, class) by falling score; labels: (corner box, class). Of every detection the pair with the
    largest overlap stays (of equal ones the last label); then of every label the first pair that is left, in the order
    of detections.
    """
    pairs = []
    for number, (box, kind) in enumerate(labels):
        for location, (other, label) in enumerate(detections):
            if kind == label and iou(box, other) >= least:
                pairs.append((number, location, iou(box, other)))
    pairs = sorted(pairs, key=lambda pair: pair[2])[::-1]  # the published code sorts up and turns the order round
    of_detection = {}
    for pair in pairs:
        of_detection.setdefault(pair[1], pair)
    of_label = {}
    for location in sorted(of_detection):
        of_label.setdefault(of_detection[location][0], of_detection[location])
    counted = [0.0] * len(detections)
    for _, location, overlap in of_label.values():
        counted[location] = overlap
    return counted


def yolo_average_precision(hits, truths):
    """The area under the curve of (score, hit or not) of one class: 101 recalls, straight lines between points."""
    ranked = sorted(hits, key=lambda pair: -pair[0])
    recalls, precisions, right = [0.0], [1.0], 0
    for seen, (_, hit) in enumerate(ranked, 1):
        right += hit
        recalls.append(right / truths)
        precisions.append(right / seen)
    recalls, precisions = [*recalls, 1.0], [*precisions, 0.0]
    for i in range(len(precisions) - 2, -1, -1):
        precisions[i] = max(precisions[i], precisions[i + 1])

    def height(x):
        after = next((i for i in range(len(recalls)) if recalls[i] > x), None)
        if after is None:  # x is the last recall
            return precisions[-1]
        left, right = recalls[after - 1], recalls[after]
        return precisions[after - 1] + (precisions[after] - precisions[after - 1]) * (x - left) / (right - left)

    heights = [height(i / 100) for i in range(101)]
    return sum((a + b) / 200 for a, b in itertools.pairwise(heights))


def yolo_ap(truth, results, thresholds):
    """{class: [average precision at each threshold]} of COCO's forms."""

    def corner(box):
        return box[0], box[1], box[0] + box[2], box[1] + box[3]

    plain = [row for row in truth["annotations"] if not row["iscrowd"]]
    hits = {}
    for image in sorted(truth["images"], key=lambda row: row["id"]):  # the order decides between equal scores
        labels = [(corner(r["bbox"]), r["category_id"]) for r in plain if r["image_id"] == image["id"]]
        own = sorted((r for r in results if r["image_id"] == image["id"]), key=lambda r: -r["score"])[:300]
        overlaps = yolo_matching([(corner(r["bbox"]), r["category_id"]) for r in own], labels)
        for row, overlap in zip(own, overlaps):
            hits.setdefault(row["category_id"], []).append((row["score"], overlap))
    table = {}
    for category in sorted({row["category_id"] for row in plain}):
        count = sum(row["category_id"] == category for row in plain)
        actual = hits.get(category, [])
        table[category] = [
            yolo_average_precision([(s, o >= t) for s, o in actual], count) if actual else 0.0 for t in thresholds
        ]
    return table

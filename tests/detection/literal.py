"""Slow, literal versions of what steadyspike.detection computes: loops over single boxes, no tensors of many."""

from __future__ import annotations

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
    found = []
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
                found.append((int(image), int(label), anchor, min(row, height - 1), min(column, width - 1), number))
    return found


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

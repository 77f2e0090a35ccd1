"""Boxes, CIoU, decoding and suppression against literal versions, and gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from steadyspike.detection import complete_iou, decode, detections, pairwise_iou, suppress
from steadyspike.detection.boxes import area, to_centre, to_corners
from tests.detection import literal


def boxes(count: int, seed: int = 0) -> torch.Tensor:
    """Centre boxes of many places and shapes."""
    generator = torch.Generator().manual_seed(seed)
    location = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 20
    return torch.cat([location, torch.rand(count, 2, generator=generator, dtype=torch.float64) * 12 + 0.2], 1)


def test_corners_and_centres_are_inverse() -> None:
    some = boxes(20)
    torch.testing.assert_close(to_centre(to_corners(some)), some)
    assert to_corners(torch.tensor([[5.0, 6.0, 4.0, 2.0]])).tolist() == [[3.0, 5.0, 7.0, 7.0]]
    assert area(torch.tensor([[0.0, 0, 2, 3], [2, 2, 1, 5]])).tolist() == [6.0, 0.0]


def test_iou_is_that_of_single_boxes() -> None:
    a, b = to_corners(boxes(15)), to_corners(boxes(9, 1))
    actual = pairwise_iou(a, b)
    assert actual.shape == (15, 9)
    for i in range(15):
        for j in range(9):
            assert float(actual[i, j]) == pytest.approx(literal.iou(a[i].tolist(), b[j].tolist()), abs=1e-12)


def test_iou_of_empty_boxes_is_zero() -> None:
    empty = torch.zeros(1, 4)
    assert pairwise_iou(empty, empty).tolist() == [[0.0]]


def test_ciou_is_the_formula_of_the_paper() -> None:
    a, b = boxes(60), boxes(60, 1)
    for value, p, q in zip(complete_iou(a, b).tolist(), a.tolist(), b.tolist()):
        assert value == pytest.approx(literal.ciou(p, q), abs=1e-6)
    assert complete_iou(a, a).tolist() == pytest.approx([1.0] * 60, abs=1e-6)


def test_gradients_of_ciou_by_finite_differences() -> None:
    """With alpha held, as its definition says: it passes no gradient."""
    a, b = boxes(8).requires_grad_(), boxes(8, 1)
    complete_iou(a, b).sum().backward()
    step = 1e-6
    for i in range(8):
        p, q = a[i].tolist(), b[i].tolist()
        overlap = literal.iou(literal.corners(p), literal.corners(q))
        v = 4 / torch.pi**2 * (torch.atan(torch.tensor(q[2] / q[3])) - torch.atan(torch.tensor(p[2] / p[3]))) ** 2
        alpha = float(v / (1 - overlap + v))
        for k in range(4):
            both = []
            for sign in (step, -step):
                moved = list(p)
                moved[k] += sign
                both.append(_held(moved, q, alpha))
            assert float(a.grad[i, k]) == pytest.approx((both[0] - both[1]) / (2 * step), abs=1e-4)


def _held(a: list[float], b: list[float], alpha: float) -> float:
    """CIoU with a given alpha."""
    p, q = literal.corners(a), literal.corners(b)
    distance = (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
    around = (max(p[2], q[2]) - min(p[0], q[0])) ** 2 + (max(p[3], q[3]) - min(p[1], q[1])) ** 2
    angles = [math.atan(box[2] / box[3]) for box in (a, b)]
    v = 4 / math.pi**2 * (angles[1] - angles[0]) ** 2
    return literal.iou(p, q) - distance / around - alpha * v


def test_decoding_is_the_published_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = [torch.randn(2, 2, h, w, 7, generator=generator) for h, w in ((4, 6), (2, 3))]
    anchors = torch.tensor([[[10.0, 14], [23, 27]], [[81, 82], [135, 169]]])
    rows = decode(maps, anchors, (16, 32))
    assert rows.shape == (2, 2 * (24 + 6), 7)
    location = 0
    for raw, own, stride in zip(maps, anchors, (16, 32)):
        for a in range(2):
            for i in range(raw.shape[2]):
                for j in range(raw.shape[3]):
                    x, y, w, h, *rest = (literal.sigmoid(v) for v in raw[1, a, i, j].tolist())
                    expected = [(2 * x - 0.5 + j) * stride, (2 * y - 0.5 + i) * stride]
                    expected += [(2 * w) ** 2 * float(own[a, 0]), (2 * h) ** 2 * float(own[a, 1]), *rest]
                    assert rows[1, location].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
                    location += 1


@pytest.mark.parametrize("overlap", [0.3, 0.6])
def test_suppression_is_the_greedy_rule(overlap: float) -> None:
    generator = torch.Generator().manual_seed(3)
    some = to_corners(boxes(120, 2))
    scores = (torch.rand(120, generator=generator) * 20).round() / 20  # with equal ones
    classes = torch.randint(3, (120,), generator=generator)
    expected = literal.suppress(some.tolist(), scores.tolist(), classes.tolist(), overlap)
    assert suppress(some, scores, overlap, classes=classes).tolist() == expected
    assert suppress(some, scores, overlap, most=5, classes=classes).tolist() == expected[:5]
    alone = literal.suppress(some.tolist(), scores.tolist(), [0] * 120, overlap)
    assert suppress(some, scores, overlap).tolist() == alone


def test_nothing_to_suppress() -> None:
    assert suppress(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


def test_detections_take_every_likely_class_or_the_best() -> None:
    rows = torch.tensor(
        [[[50.0, 50, 20, 20, 0.9, 0.8, 0.5], [51, 50, 20, 20, 0.8, 0.9, 0.1], [90, 90, 10, 10, 0.0005, 1, 1]]]
    )
    many = detections(rows, confidence=0.1)[0]
    assert many.classes.tolist() == [0, 1] and many.scores.tolist() == pytest.approx([0.72, 0.45])
    assert many.boxes[0].tolist() == [40, 40, 60, 60]
    one = detections(rows, confidence=0.1, multi_label=False)[0]
    assert one.classes.tolist() == [0]
    assert len(detections(rows, confidence=0.95)[0].boxes) == 0

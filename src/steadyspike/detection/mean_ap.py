"""`mean_ap`: COCO's twelve numbers for detections, in numpy."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from steadyspike.data.errors import DataError
from steadyspike.detection.coco_matching import AREAS, IOU_THRESHOLDS, MOST, RECALL_POINTS, Floats, Matched, match
from steadyspike.detection.results import Detected, ResultsLike, Truth, TruthLike, as_results, as_truth

NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
ENGINES = ("own", "faster-coco-eval", "pycocotools")


class Curves(NamedTuple):
    """precision: [thresholds, recall points, classes, areas, most]
    recall: the same without the recall points

    A value of -1 means that there is nothing to detect.
    """

    precision: Floats
    recall: Floats


def mean_ap(truth: TruthLike, results: ResultsLike, *, engine: str = "own") -> dict[str, float]:
    """Computes COCO's numbers: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl.

    truth: an annotation file of COCO (images, annotations, categories), as a path or loaded
    results: a list of {image_id, category_id, bbox: [left, top, width, height], score}, as a path or loaded


    A number is -1 if the truth has no box of its kind. AP is the mean over IoU thresholds .5, .55, ..., .95 and classes
    of the precision averaged over 101 recall points; AP50 is the same at .5 only. Small
    boxes have an area below 32^2 pixels, large ones above 96^2, and medium ones lie between. AR1, AR10 and AR100 use 1,
    10 and 100 detections per image.
    engine: ``"own"``, or another evaluator to compare with: ``"faster-coco-eval"`` (installed by
    ``steadyspike[detection]``) or ``"pycocotools"``
    """
    truth_table, detected = as_truth(truth), as_results(results)
    if engine != "own":
        from steadyspike.detection.other_evaluators import evaluate

        return evaluate(engine, truth_table, detected)
    return numbers(curves(truth_table, detected))


def class_ap(truth: TruthLike, results: ResultsLike) -> dict[str, dict[str, float]]:
    """Returns AP and AP50 of every class by name; -1 if the truth has no box of it."""
    truth_table = as_truth(truth)
    return class_numbers(truth_table, curves(truth_table, as_results(results)))


def curves(truth: Truth, results: Detected) -> Curves:
    """Computes precision and recall of every class, range of areas, threshold and number of detections."""
    unknown = set(results.category.tolist()) - set(truth.categories)
    if unknown:
        raise DataError(f"the results have category {min(unknown)}, which is not in the truth")
    strange = set(results.image.tolist()) - set(truth.images)
    if strange:
        raise DataError(f"the results have image {min(strange)}, which is not in the truth")
    matched = _matched(truth, results)
    shape = (len(IOU_THRESHOLDS), len(RECALL_POINTS), len(truth.categories), len(AREAS), len(MOST))
    precision, recall = -np.ones(shape), -np.ones((shape[0], *shape[2:]))
    for k, category in enumerate(truth.categories):
        for m, most in enumerate(MOST):
            _curve(matched[category], most, precision[:, :, k, :, m], recall[:, k, :, m])
    return Curves(precision, recall)


def _matched(truth: Truth, results: Detected) -> dict[int, list[Matched]]:
    """Returns for every class the images (in the order of their ids) that have a true or a predicted box of it."""
    true = _by_class_and_image(truth.category, truth.image)
    by_class = _by_class_and_image(results.category, results.image)
    nothing = np.empty(0, np.int64)
    matched: dict[int, list[Matched]] = defaultdict(list)
    for key in sorted(true.keys() | by_class.keys()):
        t, f = true.get(key, nothing), by_class.get(key, nothing)
        matched[key[0]].append(
            match(results.boxes[f], results.scores[f], truth.boxes[t], truth.area[t], truth.crowd[t])
        )
    return matched


def _by_class_and_image(category: Any, image: Any) -> dict[tuple[int, int], Any]:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(category.tolist(), image.tolist())):
        groups[key].append(row)
    return {key: np.array(places) for key, places in groups.items()}


def _curve(images: list[Matched], most: int, precision: Floats, recall: Floats) -> None:
    """Fills precision [thresholds, points, areas] and recall [thresholds, areas] of one class."""
    if not images:
        return
    positives = np.sum([one.positives for one in images], 0)
    scores = np.concatenate([one.scores[:most] for one in images])
    order = np.argsort(-scores, kind="mergesort")
    hit = np.concatenate([one.hit[..., :most] for one in images], -1)[..., order]
    ignored = np.concatenate([one.ignored[..., :most] for one in images], -1)[..., order]
    right, wrong = np.cumsum(hit & ~ignored, -1, dtype=float), np.cumsum(~hit & ~ignored, -1, dtype=float)
    for a in range(len(AREAS)):
        if positives[a] == 0:
            continue
        for t in range(len(IOU_THRESHOLDS)):
            reached = right[a, t] / positives[a]
            sharp = right[a, t] / (right[a, t] + wrong[a, t] + np.spacing(1))
            sharp = np.maximum.accumulate(sharp[::-1])[::-1]
            places = np.searchsorted(reached, RECALL_POINTS, side="left")
            precision[t, :, a] = np.append(sharp, 0.0)[np.minimum(places, len(sharp))]
            recall[t, a] = reached[-1] if len(reached) else 0.0


def class_numbers(truth: Truth, curves: Curves) -> dict[str, dict[str, float]]:
    """Returns AP and AP50 of every class by name."""
    table = {}
    for k, name in enumerate(truth.categories.values()):
        own = curves.precision[:, :, k, 0, -1]
        table[name] = {"AP": _mean(own), "AP50": _mean(own[:1])}
    return table


def numbers(curves: Curves) -> dict[str, float]:
    """Returns the twelve means of precision and recall."""
    p, r, whole = curves.precision, curves.recall, len(MOST) - 1
    values = [_mean(p[..., 0, whole]), _mean(p[:1, ..., 0, whole]), _mean(p[5:6, ..., 0, whole])]
    values += [_mean(p[..., a, whole]) for a in (1, 2, 3)]
    values += [_mean(r[..., 0, m]) for m in range(len(MOST))]
    values += [_mean(r[..., a, whole]) for a in (1, 2, 3)]
    return dict(zip(NUMBERS, values))


def _mean(values: Floats) -> float:
    there = values[values > -1]
    return float(there.mean()) if there.size else -1.0

"""COCO's numbers by other evaluators, for comparison with `mean_ap`."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from steadyspike.data.errors import DataError, needs
from steadyspike.detection.results import Detected, Truth

_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def evaluate(engine: str, truth: Truth, results: Detected) -> dict[str, float]:
    """Computes the twelve numbers by ``"faster-coco-eval"`` or ``"pycocotools"``."""
    if not len(results.scores):  # pycocotools cannot load an empty list; without detections the recall is 0
        from steadyspike.detection.mean_ap import mean_ap

        return mean_ap(truth, results)
    coco, evaluator = _packages(engine)
    with contextlib.redirect_stdout(io.StringIO()):
        coco_truth = coco()
        coco_truth.dataset = _as_dataset(truth)
        coco_truth.createIndex()
        run = evaluator(coco_truth, coco_truth.loadRes(_as_list(results)), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return dict(zip(_NAMES, (float(value) for value in run.stats[:12])))


def _packages(engine: str) -> tuple[Any, Any]:
    try:
        if engine == "faster-coco-eval":
            from faster_coco_eval import COCO, COCOeval_faster

            return COCO, COCOeval_faster
        if engine == "pycocotools":
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval

            return COCO, COCOeval
    except ImportError as error:
        raise needs(engine, "detection", f"mean_ap(engine={engine!r})") from error
    raise DataError(f"engine must be own, faster-coco-eval or pycocotools, not {engine!r}")


def _as_dataset(truth: Truth) -> dict[str, Any]:
    """Returns COCO's form with annotation ids from 1 on, because both evaluators take an id of 0 for "not matched"."""
    rows = zip(truth.image, truth.category, truth.boxes, truth.area, truth.crowd)
    return {
        "info": {},
        "images": [{"id": image} for image in sorted(truth.images)],
        "categories": [{"id": c, "name": name} for c, name in truth.categories.items()],
        "annotations": [
            {"id": n, "image_id": int(i), "category_id": int(c), "bbox": b.tolist(), "area": float(a),
             "iscrowd": int(crowd)}
            for n, (i, c, b, a, crowd) in enumerate(rows, 1)
        ],
    }  # fmt: skip


def _as_list(results: Detected) -> list[dict[str, Any]]:
    rows = zip(results.image, results.category, results.boxes, results.scores)
    return [{"image_id": int(i), "category_id": int(c), "bbox": b.tolist(), "score": float(s)} for i, c, b, s in rows]

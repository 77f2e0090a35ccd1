"""The scores of a detection epoch: losses in training, mAP in evaluation, over all images of all processes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from steadyspike.detection.data.box_table import BoxTable
from steadyspike.detection.data.letterbox import fit
from steadyspike.detection.loss import DetectionLoss
from steadyspike.detection.mean_ap import Curves, class_numbers, curves, numbers
from steadyspike.detection.nms import Detections
from steadyspike.detection.results import as_results, as_truth
from steadyspike.detection.yolo_ap import yolo_ap
from steadyspike.nn.sync import sum_over_processes, world_size
from steadyspike.train.watch.scores import EpochScores as EpochScores

PARTS = ("loss", "box", "obj", "cls")
SHOWN = ("AP", "AP50", "AP75")


class LossScores(NamedTuple):
    """The mean losses of a training epoch per image: their sum, and its three parts with their gains."""

    loss: float
    box: float
    obj: float
    cls: float
    samples: int

    @property
    def selects(self) -> float:
        return -self.loss

    def cells(self, part: str) -> dict[str, float]:
        return {f"{part}_{name}": getattr(self, name) for name in PARTS}

    def line(self) -> str:
        return f"{self.box:.4f}  {self.obj:.4f}  {self.cls:.4f}"

    def record(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in PARTS}, "samples": self.samples}


class LossSums:
    """Losses summed over images: [loss, box, obj, cls, images]."""

    def __init__(self) -> None:
        self.values = torch.zeros(len(PARTS) + 1, dtype=torch.float64)

    @torch.no_grad()
    def add(self, loss: DetectionLoss, images: int) -> None:
        self.values = self.values.to(loss.total.device)
        row = torch.stack([part.detach().double() for part in loss] + [torch.ones((), device=loss.total.device)])
        self.values = self.values + row.double() * images

    def scores(self, everyone: bool = True) -> LossScores:
        *losses, samples = (sum_over_processes(self.values) if everyone else self.values).tolist()
        loss, box, obj, cls = (total / max(samples, 1.0) for total in losses)
        return LossScores(loss, box, obj, cls, int(samples))

    def reset(self) -> None:
        self.values = self.values.new_zeros(self.values.shape)


class BoxScores(NamedTuple):
    """loss: mean per image

    numbers: COCO's twelve numbers
    classes: AP and AP50 by name
    yolo: the mAP that YOLO code prints
    """

    loss: float
    samples: int
    numbers: dict[str, float]
    classes: dict[str, dict[str, float]]
    yolo: dict[str, float]

    @property
    def selects(self) -> float:
        """Returns 0.1 AP50 + 0.9 AP, as published."""
        return 0.1 * max(self.numbers["AP50"], 0.0) + 0.9 * max(self.numbers["AP"], 0.0)

    def cells(self, part: str) -> dict[str, float]:
        values = {**self.numbers, **self.yolo}
        return {f"{part}_loss": self.loss, **{f"{part}_{name}": value for name, value in values.items()}}

    def line(self) -> str:
        return "  ".join(f"{self.numbers[name]:6.3f}" for name in ("AP50", "AP"))

    def record(self) -> dict[str, Any]:
        """Returns the values for result.json; a non-finite loss becomes null, because JSON cannot represent it."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {
            "metric": "COCO", **self.numbers, "classes": self.classes, **self.yolo, "loss": loss,
            "samples": self.samples,
        }  # fmt: skip


class BoxSums:
    """Collects the detections of an evaluation; `scores` combines those of all processes."""

    def __init__(self, table: BoxTable, room: tuple[int, int]) -> None:
        self.table, self.room = table, room
        self.losses = LossSums()
        self.by_image: dict[int, list[dict[str, Any]]] = {}

    def add(self, loss: DetectionLoss, samples: Tensor, detected: list[Detections]) -> None:
        """loss: of the batch
        samples: [B], the images
        detected: their boxes in pixels of the input
        """
        self.losses.add(loss, len(samples))
        for sample, boxes in zip(samples.tolist(), detected):
            self.by_image[sample] = as_rows(self.table, self.room, sample, boxes)

    def merge(self, other: BoxSums) -> None:
        self.losses.values = self.losses.values.cpu() + other.losses.values.cpu()
        self.by_image |= other.by_image

    def results(self, everyone: bool = True) -> dict[int, list[dict[str, Any]]]:
        """Returns the detections by image, of all processes; every image counts once."""
        if not everyone or world_size() == 1:
            return self.by_image
        gathered: list[Any] = [None] * world_size()
        dist.all_gather_object(gathered, self.by_image)
        return {image: rows for one in gathered for image, rows in one.items()}

    def scores(self, everyone: bool = True) -> BoxScores:
        by_image, losses = self.results(everyone), self.losses.scores(everyone)
        truth = as_truth(self.table.coco(sorted(by_image)))
        results = as_results([row for image in sorted(by_image) for row in by_image[image]])
        measured: Curves = curves(truth, results)
        return BoxScores(
            losses.loss, losses.samples, numbers(measured), class_numbers(truth, measured), yolo_ap(truth, results)
        )

    def reset(self) -> None:
        self.losses = LossSums()
        self.by_image = {}


def as_rows(table: BoxTable, room: tuple[int, int], sample: int, detected: Detections) -> list[dict[str, Any]]:
    """Returns detections in the network's input as COCO's list, in pixels of the original image and cut to it."""
    height, width = (int(side) for side in table.sizes[sample])
    corners = fit((height, width), room).back(detected.boxes.cpu().double().numpy())
    corners = corners.clip(0, [width, height, width, height])
    boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)
    return [
        {"image_id": sample, "category_id": int(table.category_ids[label]), "bbox": box, "score": score}
        for box, label, score in zip(boxes.tolist(), detected.classes.tolist(), detected.scores.double().tolist())
    ]

"""A detection recipe as a module."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.data import DataBundle
from steadyspike.detection.box_scores import PARTS, BoxScores, BoxSums, EpochScores, LossSums
from steadyspike.detection.data.detection_set import MULTIPLE, DetectionBundle, Targets
from steadyspike.detection.decoding import decode
from steadyspike.detection.loss import DetectionLoss, Gains, detection_loss
from steadyspike.detection.mean_ap import NUMBERS
from steadyspike.detection.networks.detect import Detect
from steadyspike.detection.nms import Detections, detections
from steadyspike.detection.pictures import PredictionPictures
from steadyspike.train.build.task import Task
from steadyspike.train.recipe import Recipe, RecipeError
from steadyspike.train.recipe.training_tables import Detection
from steadyspike.train.state.session import Session

Batch = tuple[Tensor, Targets]


class Outcome(NamedTuple):
    """loss: to minimise, of the whole batch
    parts: per image
    maps: the network's output
    """

    loss: Tensor
    parts: DetectionLoss
    maps: list[Tensor]


class BoxObjective(nn.Module):
    """Runs the network and multiplies the loss by the batch size of an optimizer step, as published.

    With accumulation and several processes gradients are averaged, so the factor is always ``data.batch_size``.
    """

    def __init__(self, table: Detection, batch_size: int, gains: Gains) -> None:
        super().__init__()
        self.table, self.batch_size, self.gains = table, batch_size, gains

    def set_epoch(self, epoch: int) -> None:
        """Nothing here depends on the epoch."""

    def measured(self, model: nn.Module, maps: list[Tensor], targets: Targets) -> DetectionLoss:
        anchors, strides = _scales(model)
        raw = [one.float() for one in maps]
        return detection_loss(raw, targets.boxes, anchors, strides, self.gains, self.table.anchor_ratio)

    def forward(self, model: nn.Module, x: Tensor, targets: Targets) -> Outcome:
        maps = model(x)
        with torch.autocast(x.device.type, enabled=False):
            parts = self.measured(model, maps, targets)
        return Outcome(parts.total * self.batch_size, parts, maps)

    def detected(self, model: nn.Module, maps: list[Tensor]) -> list[Detections]:
        """Returns the detections of each image, in pixels of the input."""
        table = self.table
        rows = decode([one.float() for one in maps], *_scales(model))
        return detections(rows, confidence=table.confidence, overlap=table.overlap, most=table.most)


def _scales(model: nn.Module) -> tuple[Tensor, tuple[int, ...]]:
    """Returns anchors and strides of a network's head."""
    head = getattr(model, "head", None)
    if not isinstance(head, Detect):
        raise RecipeError(
            f"{type(model).__name__} cannot be trained for detection: its attribute `head` must be a "
            f"steadyspike.detection.networks.detect.Detect, not {type(head).__name__}"
        )
    return head.anchors, head.strides


class DetectionTask(Task):
    """`Task` for detection: its evaluation gives mAP."""

    selected_by = "fitness"
    smallest_image = MULTIPLE
    extra_tables: ClassVar[dict[str, tuple[str, ...]]] = {"map": ("epoch", "class", "AP", "AP50")}
    objective: Any

    def __init__(self, recipe: Recipe, model: nn.Module, objective: Any) -> None:
        super().__init__(recipe, model, objective)
        self.train_sums = LossSums()

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        if recipe.loss.name != "ce" or recipe.loss.options or recipe.loss.terms:
            raise RecipeError("[loss] is for classes; the loss of boxes is set in [detection]")

    @classmethod
    def check_model(cls, recipe: Recipe, model: nn.Module, x: Tensor, classes: int) -> None:
        _scales(model)

    @classmethod
    def dry_loss(cls, recipe: Recipe, model: nn.Module, x: Tensor, classes: int, static: bool) -> Tensor:
        """Returns the loss per image of noise with one box in each half of the batch."""
        height, width = x.shape[-2:]
        boxes = torch.tensor(
            [[0.0, 0, width / 2, height / 2, 30, 40], [1, classes - 1, width / 3, height / 3, 100, 90]]
        )
        parts = box_objective(recipe, classes, (height, width))(model, x, Targets(boxes, torch.tensor([0, 1]))).parts
        return parts.total

    @classmethod
    def make_objective(cls, recipe: Recipe, bundle: DataBundle) -> Any:
        return box_objective(recipe, bundle.num_classes, bundle.shape)

    def observers(self, session: Session) -> list[Any]:
        return [PredictionPictures(session)]

    def new_sums(self, bundle: DataBundle) -> BoxSums:
        """Returns empty sums for the images of this data."""
        if not isinstance(bundle, DetectionBundle):
            raise RecipeError(f"data.name = {bundle.name!r} has no boxes, so there cannot be a [detection] table")
        return BoxSums(bundle.dataset.table, bundle.shape)

    def columns(self, part: str) -> list[str]:
        if part == "train":
            return [f"train_{name}" for name in PARTS]
        return [f"{part}_loss", *(f"{part}_{name}" for name in (*NUMBERS, "yolo_AP50", "yolo_AP"))]

    def extra_rows(self) -> list[tuple[str, dict[str, Any]]]:
        if not isinstance(self.last_eval, BoxScores):
            return []
        rows = {"all": {name: self.last_eval.numbers[name] for name in ("AP", "AP50")}, **self.last_eval.classes}
        return [("map", {"class": name, **row}) for name, row in rows.items()]

    def title(self, part: str | None) -> str:
        return "box, obj, cls" + (f"               {part} mAP@.5, mAP@.5:.95 (COCO)" if part else "")

    def train_line(self, scores: EpochScores) -> str:
        return scores.line()

    def loss_of_a_guess(self, classes: int) -> float | None:
        return None

    def forward(self, batch: Any) -> Tensor:
        x, targets = batch
        outcome: Outcome = self.objective(self.model, x, targets)
        self.train_sums.add(outcome.parts, len(targets))
        self.step_losses.append(outcome.parts.total.detach())
        return outcome.loss

    def eval_step(self, batch: Any) -> None:
        x, targets = batch
        maps = self.model(x)
        loss = self.objective.measured(self.model, maps, targets)
        self.eval_sums.add(loss, targets.samples, self.objective.detected(self.model, maps))


def box_objective(recipe: Recipe, classes: int, size: tuple[int, int]) -> BoxObjective:
    """Returns the loss of a detection recipe for this number of classes and inputs of (height, width)."""
    table = recipe.detection
    assert table is not None
    gains = Gains(table.box, table.obj, table.cls)
    if table.scale_gains:
        gains = gains.scaled(2, classes, size)
    return BoxObjective(table, recipe.data.batch_size, gains)

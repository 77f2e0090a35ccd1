"""A finished detection run as a function from an image to boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steadyspike.data.images import to_tensor
from steadyspike.detection.data.letterbox import fit, letterbox
from steadyspike.detection.decoding import decode
from steadyspike.detection.nms import detections
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe.kinds import kind_of
from steadyspike.train.run.loading import load_run

if TYPE_CHECKING:
    from PIL.Image import Image


class BoxPredictor:
    """``predictor(image)`` returns the boxes of an RGB image as COCO's list, best first; the run's data is not needed.

    confidence: the smallest score of a box
    names: category id -> name
    """

    def __init__(self, folder: str | Path, confidence: float) -> None:
        run, data = load_run(folder), RunFolder(Path(folder)).read_json("run.json")["data"]
        if (table := run.recipe.detection) is None:
            raise RunError(f"{folder} finds {kind_of(run.recipe).finds}, not boxes")
        self.model, self.table, self.confidence = run.model, table, confidence
        self.room: tuple[int, int] = (data["shape"][1], data["shape"][2])
        self.names = {int(category): name for category, name in data["categories"].items()}

    @torch.inference_mode()
    def __call__(self, image: Image) -> list[dict[str, Any]]:
        x = to_tensor(letterbox(image, self.room))[None].to(torch.float32) / 255
        head: Any = self.model.head
        rows = decode(self.model(x), head.anchors, head.strides)
        table = self.table
        (detected,) = detections(rows, confidence=self.confidence, overlap=table.overlap, most=table.most)
        corners = fit((image.height, image.width), self.room).back(detected.boxes.double().numpy())
        corners = corners.clip(0, [image.width, image.height] * 2)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).round(2)
        ids = list(self.names)
        return [
            {"category": self.names[ids[label]], "category_id": ids[label], "score": round(score, 4), "bbox": box}
            for box, label, score in zip(boxes.tolist(), detected.classes.tolist(), detected.scores.tolist())
        ]

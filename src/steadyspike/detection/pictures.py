"""Pictures of the predicted boxes in validation images, every few epochs."""

from __future__ import annotations

from typing import Any

from steadyspike.detection.drawing import contact_sheet, draw_boxes, with_legend
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.state.session import Observer, Session

SURE = 0.25  # boxes below this score are not drawn


class PredictionPictures(Observer):
    """Writes pictures/epoch-NNN.png: predicted boxes in colour with class and score, true ones thin and white."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def after_epoch(self) -> None:
        session, table = self.session, self.session.recipe.detection
        epoch, last = session.epoch + 1, session.epoch + 1 == session.epochs
        if table is None or not table.pictures or session.task.last_eval is None:
            return
        every = session.recipe.train.eval_every
        due = epoch % table.pictures_every < every if every < table.pictures_every else True
        if not (due or last):
            return
        path = session.folder.root / "pictures" / f"epoch-{epoch:03d}.png"
        path.parent.mkdir(exist_ok=True)
        sums: Any = session.task.eval_sums
        sheet = prediction_sheet(session.bundle, sums.by_image, table.pictures)
        write_atomically(path, lambda file: sheet.save(file, "PNG"))


def prediction_sheet(bundle: Any, boxes: dict[int, list[dict[str, Any]]], most: int) -> Any:
    """Collects the first images of an evaluation with their boxes."""
    names = dict(bundle.dataset.table.categories)
    scenes = []
    for sample in sorted(boxes)[:most]:
        rows = [row for row in boxes[sample] if row["score"] >= SURE]
        truth = bundle.dataset.table.coco([sample])["annotations"]
        scenes.append(draw_boxes(bundle.dataset.item.image(sample), rows, names, truth))
    return with_legend(contact_sheet(scenes), names)

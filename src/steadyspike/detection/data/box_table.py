"""`BoxTable`: the images of a detection set and their true boxes, for every file format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
TRAIN, VALIDATION, TEST = PARTS = ("train", "validation", "test")


class Box(NamedTuple):
    """One true box: left, top, width, height in pixels; category id; area of the object; whether it is a crowd."""

    box: tuple[float, float, float, float]
    category: int
    area: float
    crowd: bool = False


class Picture(NamedTuple):
    """One image: its id in the annotations, file name, (height, width), part, and boxes (possibly none)."""

    id: int
    file: str
    size: tuple[int, int]
    part: str
    boxes: list[Box]


@dataclass(frozen=True)
class BoxTable:
    """Images in sequence; the boxes of image i are rows starts[i] to starts[i + 1].

    ids: in the annotations, unique within a part
    sizes: (height, width)
    boxes: left, top, width, height
    classes: index into ``categories`` (id -> name, in the order of ids)
    area: of the object, which decides whether it counts as small, medium or large
    """

    ids: Ints
    files: Sequence[str]
    sizes: Ints
    parts: Sequence[str]
    starts: Ints
    boxes: Floats
    classes: Ints
    area: Floats
    crowd: NDArray[np.bool_]
    categories: dict[int, str]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, image: int) -> slice:
        return slice(int(self.starts[image]), int(self.starts[image + 1]))

    def to_learn(self, image: int) -> tuple[Floats, Ints]:
        """Returns corners [n, 4] and classes [n] of an image's boxes, cut to the image.

        Without crowds and empty boxes.
        """
        rows, (height, width) = self.rows(image), self.sizes[image]
        boxes = self.boxes[rows]
        corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
        corners = corners.clip(0, [width, height, width, height])
        kept = ~self.crowd[rows] & (corners[:, 2:] > corners[:, :2]).all(1)
        return corners[kept], self.classes[rows][kept]

    @cached_property
    def category_ids(self) -> Ints:
        """Returns class index -> category id."""
        return np.array(list(self.categories), np.int64)

    def left_out(self) -> int:
        """Returns the number of boxes that are left out of training because they lie outside their image."""
        kept = sum(len(self.to_learn(i)[1]) for i in range(len(self)))
        return int((~self.crowd).sum()) - kept

    def coco(self, images: Iterable[int]) -> dict[str, Any]:
        """Returns the truth of some images in COCO's form; the id of an image is its position in this table."""
        pictures, annotations = [], []
        for i in images:
            height, width = (int(n) for n in self.sizes[i])
            pictures.append({"id": int(i), "file_name": self.files[i], "height": height, "width": width})
            for row in range(*self.rows(i).indices(len(self.boxes))):
                annotations.append(
                    {
                        "id": row + 1,
                        "image_id": int(i),
                        "category_id": int(self.category_ids[self.classes[row]]),
                        "bbox": self.boxes[row].tolist(),
                        "area": float(self.area[row]),
                        "iscrowd": int(self.crowd[row]),
                    }
                )
        categories = [{"id": c, "name": name} for c, name in self.categories.items()]
        return {"images": pictures, "annotations": annotations, "categories": categories}

    @cached_property
    def fingerprint(self) -> str:
        """Returns a hash of all boxes and classes, for a run's record."""
        digest = hashlib.sha256(repr(sorted(self.categories.items())).encode())
        for array in (self.sizes, self.starts, self.boxes, self.classes, self.area, self.crowd):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def box_table(pictures: Sequence[Picture], categories: dict[int, str], where: str) -> BoxTable:
    """Builds the table of some pictures.

    Raises DataError if there are no images, or for unknown categories or invalid boxes.
    """
    if not pictures:
        raise DataError(f"{where} lists no images")
    if not categories:
        raise DataError(f"{where} lists no categories")
    if len(set(categories.values())) != len(categories):
        raise DataError(f"{where} has two categories of one name")
    class_index = {category: index for index, category in enumerate(sorted(categories))}
    seen: set[tuple[str, int]] = set()
    files: set[tuple[str, str]] = set()
    for picture in pictures:
        if (picture.part, picture.id) in seen:
            raise DataError(f"{where}: image id {picture.id} belongs to more than one image")
        if (picture.part, picture.file) in files:
            raise DataError(f"{where}: '{picture.file}' is listed more than once")
        if min(picture.size) < 1:
            raise DataError(f"{where}: '{picture.file}' should have {picture.size[1]} x {picture.size[0]} pixels")
        seen.add((picture.part, picture.id))
        files.add((picture.part, picture.file))
        for box in picture.boxes:
            _check(box, picture, class_index, where)
    boxes = [box for picture in pictures for box in picture.boxes]
    return BoxTable(
        ids=np.array([p.id for p in pictures], np.int64),
        files=[p.file for p in pictures],
        sizes=np.array([p.size for p in pictures], np.int64).reshape(-1, 2),
        parts=[p.part for p in pictures],
        starts=np.cumsum([0, *(len(p.boxes) for p in pictures)]).astype(np.int64),
        boxes=np.array([b.box for b in boxes], np.float64).reshape(-1, 4),
        classes=np.array([class_index[b.category] for b in boxes], np.int64),
        area=np.array([b.area for b in boxes], np.float64),
        crowd=np.array([b.crowd for b in boxes], bool),
        categories={category: categories[category] for category in sorted(categories)},
    )


def _check(box: Box, picture: Picture, class_index: dict[int, int], where: str) -> None:
    if box.category not in class_index:
        raise DataError(f"{where}: a box of '{picture.file}' has category {box.category}, which is not listed")
    if not np.isfinite([*box.box, box.area]).all() or min(box.box[2:]) < 0:
        raise DataError(
            f"{where}: '{picture.file}' has the box {list(box.box)}: a position that is not finite, or a negative size"
        )

"""Reads, scales and augments images with their boxes, one at a time, in worker processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data.errors import DataError
from steadyspike.data.images import to_tensor
from steadyspike.data.sources import ItemReader, ItemSource
from steadyspike.detection.data.box_augment import BoxAugment
from steadyspike.detection.data.box_table import BoxTable
from steadyspike.detection.data.image_store import ImageStore
from steadyspike.detection.data.letterbox import fit, letterbox, scaled
from steadyspike.detection.data.mosaic import Scene

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_KEPT = 1 << 28  # the bytes of decoded images that a process caches


class Sample(NamedTuple):
    """image: uint8 [3, H, W]
    boxes: [n, 5]: class, and centre and size in pixels of the image
    """

    image: Tensor
    boxes: Tensor


@dataclass(frozen=True)
class BoxItem:
    """item(index, train, seed) -> `Sample`.
    pool: the images from which mosaics are made; stores: one per part
    """

    table: BoxTable
    stores: dict[str, ImageStore]
    room: tuple[int, int]
    augment: BoxAugment | None
    pool: NDArray[np.int64] | None = None
    _kept: dict[int, Image] = field(default_factory=dict, compare=False, repr=False)

    def image(self, index: int) -> Image:
        """Returns the image of the file, unchanged."""
        image = self.stores[self.table.parts[index]].open(self.table.files[index])
        height, width = self.table.sizes[index]
        if image.size != (width, height):
            raise DataError(
                f"image '{self.table.files[index]}' has {image.width} x {image.height} pixels, its annotation says "
                f"{width} x {height}"
            )
        return image

    def scene(self, index: int) -> Scene:
        """Returns the image scaled to fit the room, with the boxes to learn."""
        if (image := self._kept.get(index)) is None:
            image = scaled(self.image(index), self.room)
            if len(self._kept) < MOST_KEPT // (3 * self.room[0] * self.room[1]):
                self._kept[index] = image
        corners, classes = self.table.to_learn(index)
        across, down = (image.width / self.table.sizes[index][1], image.height / self.table.sizes[index][0])
        return Scene(image, corners * [across, down, across, down], classes)

    def __call__(self, index: int, train: bool, seed: int) -> Sample:
        if train and self.augment is not None:
            assert self.pool is not None
            return as_sample(self.augment(index, self.pool, self.scene, self.room, seed))
        corners, classes = self.table.to_learn(index)
        size = (int(self.table.sizes[index][0]), int(self.table.sizes[index][1]))
        kept = self.scene(index).image if train else self.image(index)
        return as_sample(Scene(letterbox(kept, self.room), fit(size, self.room).forward(corners), classes))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def as_sample(scene: Scene) -> Sample:
    """Returns a scene as tensors."""
    low, high = scene.corners[:, :2], scene.corners[:, 2:]
    boxes = np.concatenate([scene.classes[:, None], (low + high) / 2, high - low], 1)
    return Sample(to_tensor(scene.image), torch.from_numpy(boxes).to(torch.float32))


class BoxSource(ItemSource):
    """An `ItemSource` of samples with boxes; its batches are (images uint8 [B, 3, H, W], boxes [n, 6])."""

    def __init__(self, item: BoxItem) -> None:
        super().__init__(len(item.table), item)  # type: ignore[arg-type]

    def reader(self, workers: int = 0) -> ItemReader:
        return ItemReader(self, workers, collate=collate_boxes)


def collate_boxes(items: list[Sample | DataError]) -> tuple[Tensor, Tensor] | DataError:
    """Combines samples to a batch; the first column of the boxes is the image."""
    samples = []
    for item in items:
        if isinstance(item, DataError):
            return item
        samples.append(item)
    rows = [torch.cat([torch.full((len(s.boxes), 1), float(i)), s.boxes], 1) for i, s in enumerate(samples)]
    return torch.stack([s.image for s in samples]), torch.cat(rows)

"""A detection set, its bundle with a split, and the loaders of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, brief_list
from steadyspike.data.loader import AUGMENT, EvalLoader, TrainLoader
from steadyspike.data.regularise import Regularise
from steadyspike.data.sampler import TrainPlan
from steadyspike.data.seeds import mix
from steadyspike.data.sources import Request
from steadyspike.data.splits import Population, Split
from steadyspike.detection.data.box_augment import BoxAugment
from steadyspike.detection.data.box_source import BoxItem, BoxSource
from steadyspike.detection.data.box_table import PARTS, TEST, VALIDATION, BoxTable
from steadyspike.detection.data.image_store import ImageStore

MULTIPLE = 32  # sides of the input must be multiples of this, the largest stride of a network


class Targets(NamedTuple):
    """The true boxes of a batch.

    boxes: [n, 6]: image of the batch, class, centre and size in pixels of the input

    samples: [B], the images' positions in the set's table
    """

    boxes: Tensor
    samples: Tensor

    def __len__(self) -> int:
        """Returns the number of images in the batch."""
        return len(self.samples)


@dataclass(frozen=True)
class DetectionSet(DataSet):
    """A `DataSet` whose labels are boxes."""

    item: BoxItem = field(kw_only=True)

    @property
    def table(self) -> BoxTable:
        return self.item.table

    @property
    def augments_while_decoding(self) -> bool:
        return False  # options that the reader of boxes does not need

    def bundle(self, split: Split) -> DetectionBundle:
        return DetectionBundle(self, split)

    def finish(self, x: Tensor) -> Tensor:
        """Turns uint8 images into the network's input: scaled to 0..1, without mean and deviation, as published."""
        return x.to(torch.float32).div_(255)

    def with_augment(self, chosen: Any) -> DetectionSet:
        """Returns the set with another augmentation: "none", or a table of `BoxAugment`'s options."""
        augment = None
        if chosen != "none":
            valid = [f.name for f in fields(BoxAugment)]
            if not isinstance(chosen, dict) or set(chosen) - set(valid):
                raise DataError(f"augment must be 'none' or a table of {', '.join(valid)}, not {chosen!r}")
            augment = replace(self.item.augment or BoxAugment(), **chosen)
        item = replace(self.item, augment=augment)
        record = None if augment is None else augment.as_dict()
        return replace(self, item=item, source=BoxSource(item), settings={**self.settings, "box_augment": record})


def input_size(size: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """Returns (height, width) of the network's input, which must be multiples of 32."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(s, int) and s > 0 and s % MULTIPLE == 0 for s in sides):
        raise DataError(f"size must be one or two whole multiples of {MULTIPLE}, not {size!r}")
    return sides[0], sides[1]


def detection_set(
    name: str,
    table: BoxTable,
    stores: dict[str, ImageStore],
    size: int | tuple[int, int] | list[int],
    augment: BoxAugment = BoxAugment(),  # noqa: B008
) -> DetectionSet:
    """Builds a set from a table and its images; raises DataError if image files are missing."""
    for part, store in stores.items():
        own = [file for file, there in zip(table.files, table.parts) if there == part]
        if lost := store.missing(own):
            raise DataError(f"'{name}': {len(lost)} images of the {part} part are missing: {brief_list(lost, 3)}")
    room = input_size(size)
    item = BoxItem(table, stores, room, augment)
    parts = np.array(table.parts)
    given = {part: parts == part for part in PARTS if (parts == part).any()}
    return DetectionSet(
        name=name,
        source=BoxSource(item),
        population=Population(
            [f"{part}/{file}" for part, file in zip(table.parts, table.files)],
            np.zeros(len(table), np.int64),
            given.get(TEST),
            official_validation=given.get(VALIDATION),
        ),
        classes=tuple(table.categories.values()),
        channels=3,
        size=room,
        default_split="official" if TEST in given else "random:0",
        settings={
            "boxes": len(table.boxes), "annotations": table.fingerprint, "box_augment": augment.as_dict(),
            "boxes_left_out": table.left_out(),
            "categories": {str(category): name for category, name in table.categories.items()},
        },
        item=item,
    )  # fmt: skip


class BoxTrainLoader(TrainLoader):
    """`TrainLoader` whose batches are (images, `Targets`)."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        plan, data = self.plan, self.dataset
        indices = [self._index[positions] for positions in plan.batches(epoch, start)]
        # The augmentation of a sample does not depend on its process or batch.
        requests = [Request(index, True, mix(AUGMENT, plan.seed, epoch)) for index in indices]
        for index, (x, boxes) in zip(indices, self._reader.stream(requests)):
            yield data.finish(x.to(self.device)), Targets(boxes.to(self.device), index)


class BoxEvalLoader(EvalLoader):
    """`EvalLoader` whose batches are (images, `Targets`)."""

    def __iter__(self) -> Iterator[Any]:
        requests = [Request(index, False, 0) for index in self._batches]
        for index, (x, boxes) in zip(self._batches, self._reader.stream(requests)):
            yield self.dataset.finish(x.to(self.device)), Targets(boxes.to(self.device), index)


@dataclass(frozen=True)
class DetectionBundle(DataBundle):
    """A detection set and a split of it; its loaders give (images, `Targets`)."""

    dataset: DetectionSet
    _evaluation: ClassVar[type[EvalLoader]] = BoxEvalLoader

    def truth(self, part: str) -> dict[str, Any]:
        """The true boxes of a part in COCO's form; an image's id is its place in the set's table."""
        return self.dataset.table.coco(self.indices(part).tolist())

    def _training(
        self, plan: TrainPlan, index: NDArray[np.int64], device: torch.device | str, workers: int,
        regularise: Regularise | None,
    ) -> TrainLoader:  # fmt: skip
        """The training part is the only source of mosaics."""
        if regularise is not None and regularise != Regularise():
            raise DataError("mixing and erasing of whole batches are for classes, not for boxes")
        source = BoxSource(replace(self.dataset.item, pool=index))
        return BoxTrainLoader(replace(self.dataset, source=source), index, plan, device, workers)

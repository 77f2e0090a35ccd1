"""Data sets the user already has (torchvision's or any with __len__ and __getitem__ -> (image, label)) as bundles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data.augment import Augment
from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError
from steadyspike.data.seeds import seeded_globals
from steadyspike.data.sources import ArraySource, ItemSource
from steadyspike.data.splits import Population, make_split


class Pairs(Protocol):
    """A map-style data set of (image, label) pairs. Images: PIL, uint8 arrays [H, W(, C)] or tensors [C, H, W]."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_dataset(
    train: Pairs,
    test: Pairs | None = None,
    *,
    name: str = "custom",
    split: str | None = None,
    validation: str = "holdout",
    augment: Augment | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> DataBundle:
    """A bundle of one data set (split "random:SEED") or of a training and a test one (split "official").

    Byte images (PIL, uint8) are read into memory once, augmented by `augment` and normalised by mean and std (default:
    scaled to 0..1). Float tensors come from transforms of your own: they are taken as they are, item by item, in the
    loaders' workers, with the global generators seeded per item, so that they are reproducible too.
    """
    pools = [train] if test is None else [train, test]
    if any(len(pool) == 0 for pool in pools):
        raise DataError(f"data set '{name}' holds no samples.")
    first = as_tensor(train[0][0], name)
    if first.dtype != torch.uint8 and (augment, mean, std) != (None, None, None):
        raise DataError(f"data set '{name}' gives float images: augment and normalise in its own transforms.")
    if first.dtype == torch.uint8:
        images, labels = _read_all(pools, first.shape, name)
        source: ArraySource | ItemSource = ArraySource(images)
    else:
        labels = np.concatenate([labels_of(pool) for pool in pools])
        source = ItemSource(len(labels), _Item(pools, name))
    counts = [len(pool) for pool in pools]
    ids = [f"{part}/{i:07d}" for part, n in zip(("train", "test"), counts) for i in range(n)]
    official = np.repeat([False, True], counts) if test is not None else None
    dataset = DataSet(
        name=name,
        source=source,
        population=Population(ids, labels, official),
        classes=_classes(train, labels),
        channels=first.shape[0],
        size=(first.shape[1], first.shape[2]),
        default_split="official" if test is not None else "random:0",
        augment=augment or Augment(),
    )
    if first.dtype == torch.uint8:
        channels = first.shape[0]
        dataset = replace(dataset, mean=tuple(mean or (0.0,) * channels), std=tuple(std or (1.0,) * channels))
    return DataBundle(dataset, make_split(dataset.population, split or dataset.default_split, validation))


def as_tensor(image: Any, name: str) -> Tensor:
    """A PIL image, array or tensor as [C, H, W]."""
    if isinstance(image, Tensor):
        tensor = image if image.ndim != 2 else image[None]
    else:
        array = np.array(image)  # a copy: Pillow's own memory is read-only
        if array.dtype == bool:
            array = array.astype(np.uint8) * np.uint8(255)
        if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
            raise DataError(f"data set '{name}' gives images of {array.dtype}; uint8 or float is expected.")
        tensor = torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1)
    if tensor.ndim != 3:
        raise DataError(f"data set '{name}' gives images of shape {tuple(tensor.shape)}; [C, H, W] is expected.")
    return tensor


def _read_all(pools: list[Pairs], shape: torch.Size, name: str) -> tuple[Tensor, NDArray[np.int64]]:
    images = torch.empty((sum(len(pool) for pool in pools), *shape), dtype=torch.uint8)
    labels = np.empty(len(images), np.int64)
    at = 0
    for pool in pools:
        for i in range(len(pool)):
            image, label = pool[i]
            tensor = as_tensor(image, name)
            if tensor.shape != shape or tensor.dtype != torch.uint8:
                raise DataError(
                    f"data set '{name}': sample {i} is {tuple(tensor.shape)} {tensor.dtype}, sample 0 {tuple(shape)}."
                )
            images[at], labels[at] = tensor, int(label)
            at += 1
    return images, labels


def labels_of(pool: Pairs) -> NDArray[np.int64]:
    """Class indices: `targets` or `labels` where the data set has them, otherwise read item by item."""
    for attribute in ("targets", "labels"):
        if (found := getattr(pool, attribute, None)) is not None and len(found) == len(pool):
            return np.asarray(found, dtype=np.int64)
    return np.array([int(pool[i][1]) for i in range(len(pool))], np.int64)


def _classes(train: Pairs, labels: NDArray[np.int64]) -> tuple[str, ...]:
    if labels.min() < 0:
        raise DataError(f"label {labels.min()} is negative; classes are numbered from 0.")
    names = tuple(str(name) for name in getattr(train, "classes", None) or ())
    return names if len(names) > labels.max() else tuple(str(i) for i in range(int(labels.max()) + 1))


class _Item:
    """item(index, train, seed) of the data sets one after the other."""

    def __init__(self, pools: list[Pairs], name: str) -> None:
        self.pools, self.name = pools, name

    def __call__(self, index: int, train: bool, seed: int) -> Tensor:
        with seeded_globals(seed):
            for pool in self.pools:
                if index < len(pool):
                    return as_tensor(pool[index][0], self.name)
                index -= len(pool)
        raise IndexError(index)

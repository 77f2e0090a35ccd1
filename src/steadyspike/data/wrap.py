"""Bundles made from the user's own data sets (torchvision's, or any with __len__ and __getitem__ -> (image, label))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data.augment import Augment
from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset import DataSet, adjusted
from steadyspike.data.errors import DataError
from steadyspike.data.seeds import seeded_globals
from steadyspike.data.sources import ArraySource, ItemSource
from steadyspike.data.splits import Population, make_split


class Pairs(Protocol):
    """A map-style data set of (image, label) pairs.

    Images are PIL images, uint8 arrays [H, W(, C)] or tensors [C, H, W]. Clips of frames are arrays or tensors [T, C,
    H, W].
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_dataset(
    train: Pairs,
    test: Pairs | None = None,
    *,
    name: str = "custom",
    split: str | None = None,
    validation: str = "holdout",
    augment: Augment | dict[str, Any] | str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    settings: dict[str, Any] | None = None,
) -> DataBundle:
    """Makes a bundle of one data set (split "random:SEED"), or of a training and a test set (split "official").

    Byte images (PIL, uint8) are read into memory once, augmented by `augment` and normalised by mean and std (default:
    only scaled to 0..1). Float tensors come from your own transforms. They are used unchanged, item by item, in the
    loaders' workers. The global generators are seeded for each item, so that these transforms are reproducible too.
    Your transforms run on all parts. A validation part that is held out of `train` also passes through the training
    transforms, including random ones.

    Clips of frames (event data) are recognised by their four axes. Clips of whole numbers are read into memory and may
    be augmented; float clips are read item by item. They are never normalised. `from_recordings` makes clips from raw
    events.

    settings: plain values to store in a run's record

    Labels are what `__getitem__` returns (after a target_transform). A list `targets` or `labels` is only used to avoid
    reading all items.
    """
    pools = [train] if test is None else [train, test]
    if any(len(pool) == 0 for pool in pools):
        raise DataError(f"data set '{name}' holds no samples")
    first = as_tensor(train[0][0], name)
    is_clip = first.ndim == 4
    in_memory = not first.is_floating_point()
    if is_clip and (mean, std) != (None, None):
        raise DataError(f"data set '{name}' gives clips, which are not normalised: leave out mean and std")
    if not in_memory and (augment, mean, std) != (None, None, None):
        raise DataError(f"data set '{name}' gives float images: augment and normalise in its own transforms")
    if in_memory:
        images, labels = _read_all(pools, first, name)
        source: ArraySource | ItemSource = ArraySource(images)
    else:
        labels = np.concatenate([labels_of(pool, name) for pool in pools])
        source = ItemSource(len(labels), _Item(pools, labels, name))
    counts = [len(pool) for pool in pools]
    ids = [f"{part}/{i:07d}" for part, n in zip(("train", "test"), counts) for i in range(n)]
    official = np.repeat([False, True], counts) if test is not None else None
    dataset = DataSet(
        name=name,
        source=source,
        population=Population(ids, labels, official),
        classes=_classes(train, labels),
        channels=first.shape[-3],
        size=(first.shape[-2], first.shape[-1]),
        timesteps=first.shape[0] if is_clip else None,
        default_split="official" if test is not None else "random:0",
        mean=(0.0,) * first.shape[0] if in_memory and not is_clip else None,
        std=(1.0,) * first.shape[0] if in_memory and not is_clip else None,
        settings=settings or {},
    )
    dataset = adjusted(dataset, augment, mean, std)
    split_name = dataset.default_split if split is None else split
    return DataBundle(dataset, make_split(dataset.population, split_name, validation, dataset=name))


def as_tensor(image: Any, name: str) -> Tensor:
    """Converts a PIL image, array or tensor to [C, H, W], and a clip to [T, C, H, W]."""
    if getattr(image, "ndim", 0) == 4:
        return _clip(image, name)
    if isinstance(image, Tensor):
        tensor = image if image.ndim != 2 else image[None]
    else:
        array = np.array(image)  # a copy: Pillow's own memory is read-only
        if array.dtype == bool:
            array = array.astype(np.uint8) * np.uint8(255)
        if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
            raise DataError(f"data set '{name}' gives images of {array.dtype}; uint8 or float is expected")
        tensor = torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1)
    if tensor.ndim != 3:
        raise DataError(f"data set '{name}' gives images of shape {tuple(tensor.shape)}; [C, H, W] is expected")
    return tensor


def _clip(clip: Any, name: str) -> Tensor:
    """Returns a clip [T, C, H, W] with counts in a type that torch can index."""
    tensor = clip if isinstance(clip, Tensor) else torch.from_numpy(np.ascontiguousarray(clip))
    if tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.int16, torch.int32):
        return tensor
    if tensor.is_complex():
        raise DataError(f"data set '{name}' gives clips of {tensor.dtype}; whole numbers or float are expected")
    return tensor.to(torch.int32)


def _read_all(pools: list[Pairs], first: Tensor, name: str) -> tuple[Tensor, NDArray[np.int64]]:
    shape = first.shape
    images = torch.empty((sum(len(pool) for pool in pools), *shape), dtype=first.dtype)
    labels = np.empty(len(images), np.int64)
    at = 0
    for pool in pools:
        for i in range(len(pool)):
            image, label = pool[i]
            tensor = as_tensor(image, name)
            if tensor.shape != shape or tensor.dtype != first.dtype:
                raise DataError(
                    f"data set '{name}': sample {i} is {tuple(tensor.shape)} {tensor.dtype}, sample 0 {tuple(shape)}"
                )
            images[at], labels[at] = tensor, _whole_label(label, i, name)
            at += 1
    return images, labels


def labels_of(pool: Pairs, name: str) -> NDArray[np.int64]:
    """Returns the class index that `__getitem__` gives for every item.

    Reading all items only for their labels is slow. If the data set has a list `targets` or `labels`, this list is used
    instead. It is not used if there is a target_transform, or if a few items that are read as a check have other
    labels. A wrong label that this check misses raises an error when its item is read.
    """
    if getattr(pool, "target_transform", None) is None:
        for attribute in ("targets", "labels"):
            listed = _listed(getattr(pool, attribute, None), len(pool))
            if listed is not None and all(listed[i] == _label_at(pool, i, name) for i in _spread(len(pool), 24)):
                return listed
    return np.array([_label_at(pool, i, name) for i in range(len(pool))], np.int64)


def _listed(labels: Any, count: int) -> NDArray[np.int64] | None:
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError):
        return None
    whole = array.shape == (count,) and np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int64) if whole else None


def _spread(count: int, most: int) -> list[int]:
    """Returns at most `most` positions, spread evenly from the first to the last of `count`."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _label_at(pool: Pairs, index: int, name: str) -> int:
    with seeded_globals(0):
        return _whole_label(pool[index][1], index, name)


def _whole_label(label: Any, index: int, name: str) -> int:
    try:
        if (whole := int(label)) == label:
            return whole
    except (TypeError, ValueError, RuntimeError):
        pass
    raise DataError(f"data set '{name}': sample {index} has label {label!r}; a class index is expected")


def _classes(train: Pairs, labels: NDArray[np.int64]) -> tuple[str, ...]:
    if labels.min() < 0:
        raise DataError(f"label {labels.min()} is negative; classes are numbered from 0")
    names = tuple(str(name) for name in getattr(train, "classes", None) or ())
    return names if len(names) > labels.max() else tuple(str(i) for i in range(int(labels.max()) + 1))


class _Item:
    """Returns one item, called with (index, train, seed); the indices of several data sets follow one another."""

    def __init__(self, pools: list[Pairs], labels: NDArray[np.int64], name: str) -> None:
        self.pools, self.labels, self.name = pools, labels, name

    def __call__(self, index: int, train: bool, seed: int) -> Tensor:
        expected = int(self.labels[index])
        for pool in self.pools:
            if index < len(pool):
                break
            index -= len(pool)
        with seeded_globals(seed):
            image, label = pool[index]
        if _whole_label(label, index, self.name) != expected:
            raise DataError(
                f"data set '{self.name}': sample {index} has label {label}, but its list of targets has {expected}"
            )
        return as_tensor(image, self.name)

"""A data set before it is split: samples, labels and the preparation of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadyspike.data.augment import Augment, normalise
from steadyspike.data.errors import DataError
from steadyspike.data.sources import ItemSource, Source
from steadyspike.data.splits import Population, Split

if TYPE_CHECKING:
    from steadyspike.data.bundle import DataBundle


@dataclass(frozen=True)
class DataSet:
    """The samples of a data set, their labels, and how a batch of them is prepared.

    size: (height, width) of a sample
    timesteps: frames of a clip (None: a still image)

    mean, std: of a uint8 image divided by 255 (None: values are used unchanged)
    settings: everything else that changes a sample (frames, resize, transforms), as plain values for a run's record
    """

    name: str
    source: Source
    population: Population
    classes: tuple[str, ...]
    channels: int
    size: tuple[int, int]
    timesteps: int | None = None
    default_split: str = "official"
    test_fraction: float = 0.1
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment = field(default_factory=Augment)
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.population.labels)

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augments a raw training batch; empty pixels of a moved image get the data set's mean colour."""
        if self.mean is None:
            return self.augment(x, generator)
        return self.augment(x, generator, [min(255.0, round(255 * value)) for value in self.mean])

    def finish(self, x: Tensor) -> Tensor:
        """Turns a raw (augmented) batch into the network's input: float32, normalised, time first."""
        if self.timesteps is not None:
            return x.transpose(0, 1).to(torch.float32).contiguous()
        if self.mean is not None and self.std is not None:
            return normalise(x, self.mean, self.std)
        return x.to(torch.float32)

    def bundle(self, split: Split) -> DataBundle:
        """Returns the set together with a split of it, ready for loaders."""
        from steadyspike.data.bundle import DataBundle

        return DataBundle(self, split)

    @property
    def augments_while_decoding(self) -> bool:
        """Returns whether augmentation is part of reading a sample, so that it cannot be switched off."""
        return isinstance(self.source, ItemSource)

    def with_augment(self, chosen: Any) -> DataSet:
        """Returns the set with another augmentation: an `Augment`, a table of its options, or "none"."""
        return replace(self, augment=_augment(chosen))


def adjusted(
    dataset: DataSet,
    augment: Augment | dict[str, Any] | str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> DataSet:
    """Returns `dataset` with another augmentation or normalisation; None keeps the data set's own."""
    if augment is not None:
        dataset = dataset.with_augment(augment)
    return replace(
        dataset,
        mean=dataset.mean if mean is None else _constants(dataset, "mean", mean),
        std=dataset.std if std is None else _constants(dataset, "std", std),
    )


_AUGMENT_KEYS = {item.name for item in fields(Augment)}


def _augment(chosen: Augment | dict[str, Any] | str) -> Augment:
    if isinstance(chosen, Augment):
        return chosen
    if chosen == "none":
        return Augment()
    if not isinstance(chosen, dict) or set(chosen) - _AUGMENT_KEYS:
        keys = ", ".join(sorted(_AUGMENT_KEYS))
        raise DataError(f"augment must be 'none' or a table with some of {keys}, not {chosen!r}")
    return Augment(**chosen)


def _constants(dataset: DataSet, name: str, values: Sequence[float]) -> tuple[float, ...]:
    if dataset.mean is None:
        raise DataError(f"'{dataset.name}' takes no {name}: its values are used unchanged")
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if (
        len(numbers) != dataset.channels
        or not all(map(math.isfinite, numbers))
        or (name == "std" and min(numbers) <= 0)
    ):
        kind = "positive finite" if name == "std" else "finite"
        raise DataError(f"{name} of '{dataset.name}' takes a list of {dataset.channels} {kind} numbers, not {values!r}")
    return numbers

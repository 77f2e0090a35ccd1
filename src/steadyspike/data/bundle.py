"""The data of a run: a data set with its split, and the loaders of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError
from steadyspike.data.loader import EvalLoader, TrainLoader
from steadyspike.data.regularise import Regularise
from steadyspike.data.sampler import TrainPlan, eval_batches
from steadyspike.data.splits import PARTS, SELECTIONS, Split


@dataclass(frozen=True)
class DataBundle:
    """A data set and a split of it. Model selection uses `selection_part`: "validation", "test" or None."""

    dataset: DataSet
    split: Split
    _evaluation: ClassVar[type[EvalLoader]] = EvalLoader

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.dataset.classes

    @property
    def num_classes(self) -> int:
        return len(self.dataset.classes)

    @property
    def in_channels(self) -> int:
        return self.dataset.channels

    @property
    def shape(self) -> tuple[int, int]:
        """Returns (height, width) of the loaders' samples."""
        return self.dataset.size

    @property
    def timesteps(self) -> int | None:
        """Returns the number of frames of a clip; None for still images, which the model repeats for its steps."""
        return self.dataset.timesteps

    @property
    def selection_part(self) -> str | None:
        return None if self.split.selection == "none" else self.split.selection

    def indices(self, part: str) -> NDArray[np.int64]:
        """Sample indices of "train", "validation" or "test"; DataError if the part is empty."""
        index = self.split.part(part)
        if len(index) == 0:
            raise DataError(
                f"split '{self.split.name}' of '{self.name}' has no {part} part: {SELECTIONS[self.split.selection]}; "
                "load with validation='holdout' to keep one"
            )
        return index

    def train_loader(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 0,
        drop_last: bool = False,
        repeats: int = 1,
        regularise: Regularise | None = None,
    ) -> TrainLoader:
        """Augmented, shuffled batches of the training part for one process; `batch_size` is per process.

        repeats: see `TrainPlan`
        regularise: random erasing and mixing, see `Regularise`
        """
        index = self.indices("train")
        plan = TrainPlan(len(index), batch_size, seed, rank, world_size, drop_last, repeats)
        return self._training(plan, index, device, workers, regularise)

    def _training(
        self, plan: TrainPlan, index: NDArray[np.int64], device: torch.device | str, workers: int,
        regularise: Regularise | None,
    ) -> TrainLoader:  # fmt: skip
        return TrainLoader(self.dataset, index, plan, device, workers, regularise)

    def eval_loader(
        self,
        part: str,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> EvalLoader:
        """Yields every sample of a part exactly once over all processes, in order, without augmentation."""
        index = self.indices(part)
        batches = eval_batches(len(index), batch_size, rank, world_size)
        return self._evaluation(self.dataset, index, batches, device, workers)

    def describe(self) -> dict[str, Any]:
        """Describes the data that a run was trained and measured on, as plain values for JSON."""
        data, augment = self.dataset, self.dataset.augment
        return {
            "name": data.name,
            "classes": self.num_classes,
            "shape": [data.channels, *data.size],
            "timesteps": data.timesteps,
            "split": self.split.record(),
            "mean": None if data.mean is None else list(data.mean),
            "std": None if data.std is None else list(data.std),
            "augment": augment.as_dict(),
            **data.settings,
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.split.part(part))} {part}" for part in PARTS)
        steps = "" if self.timesteps is None else f"T={self.timesteps}, "
        return (
            f"{self.name}: {self.num_classes} classes, {steps}{self.in_channels} x {self.shape[0]} x {self.shape[1]}, "
            f"{counts}; split {self.split.name} ({self.split.fingerprint})"
        )

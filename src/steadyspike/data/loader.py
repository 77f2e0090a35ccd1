"""Loaders: batches (x, y) on the training device. x is [B, C, H, W], or [T, B, C, H, W] for clips; y is [B]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.regularise import Regularise
from steadyspike.data.sampler import TrainPlan
from steadyspike.data.seeds import generator, mix
from steadyspike.data.sources import Request

Batch = tuple[Tensor, Tensor]
AUGMENT = 2  # gives augmentation other random numbers than the shuffle


class TrainLoader:
    """Augmented, shuffled training batches. Equal (seed, epoch, rank, world_size) give equal batches.

    `for x, y in loader` runs the rest of the current epoch and then moves to the next one; `set_epoch` chooses another
    epoch. `state_dict()` between two batches holds the position; a loader that loads it continues with the next batch.
    """

    def __init__(
        self,
        dataset: DataSet,
        index: NDArray[np.int64],
        plan: TrainPlan,
        device: torch.device | str,
        workers: int,
        regularise: Regularise | None = None,
    ) -> None:
        self.dataset, self.plan, self.device = dataset, plan, torch.device(device)
        self.regularise = regularise or Regularise()
        self.regularise.check(dataset)
        self._index, self._reader = torch.from_numpy(index), dataset.source.reader(workers)
        self.epoch, self._next = 0, 0

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self.plan.num_batches

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields batches start, start + 1, ... of an epoch; changes nothing in the loader."""
        plan, data = self.plan, self.dataset
        indices = [self._index[positions] for positions in plan.batches(epoch, start)]
        seed = mix(AUGMENT, plan.seed, epoch)
        raw = self._reader.stream([Request(index, True, seed) for index in indices])
        for number, (index, x) in enumerate(zip(indices, raw), start):
            random = generator(AUGMENT, plan.seed, epoch, plan.rank, plan.world_size, number)
            x = data.finish(data.augmented(x.to(self.device), random))
            yield self.regularise(x, data.labels[index].to(self.device), data, epoch, random)

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self.epoch, self._next
        for number, batch in enumerate(self.batches(epoch, start), start + 1):
            self._next = number
            if number == len(self):
                self.epoch, self._next = epoch + 1, 0
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of `epoch`, unless the loader is already inside this epoch (after a resume)."""
        if epoch != self.epoch:
            self.epoch, self._next = epoch, 0

    def restart(self) -> None:
        """Goes back to the first batch of the current epoch (after leaving a loop early)."""
        self._next = 0

    def _identity(self) -> dict[str, Any]:
        p = self.plan
        return {
            "samples": p.samples,
            "batch_size": p.batch_size,
            "seed": p.seed,
            "world_size": p.world_size,
            "drop_last": p.drop_last,
            **({"repeats": p.repeats} if p.repeats > 1 else {}),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self._identity(), "epoch": self.epoch, "batch": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state`; raises an error if data, batch size, seed or number of processes differ."""
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise DataError(f"cannot resume the loader: {key} was {state.get(key)}, now it is {value}")
        epoch: Any = state.get("epoch")
        batch: Any = state.get("batch")
        whole_number("epoch of the loader's state", epoch, least=0)
        whole_number("batch of the loader's state", batch, least=0)
        if batch >= len(self):
            raise DataError(f"cannot resume the loader: batch {batch} of an epoch of {len(self)} batches")
        self.epoch, self._next = epoch, batch


class EvalLoader:
    """Batches of one part without augmentation, every sample exactly once over all processes (nothing is padded)."""

    def __init__(
        self,
        dataset: DataSet,
        index: NDArray[np.int64],
        batches: list[Tensor],
        device: torch.device | str,
        workers: int,
    ) -> None:
        self.dataset, self.device, self._reader = dataset, torch.device(device), dataset.source.reader(workers)
        self._batches = [torch.from_numpy(index)[positions] for positions in batches]

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def samples(self) -> int:
        """Returns the number of samples that this process will see."""
        return sum(len(batch) for batch in self._batches)

    def __iter__(self) -> Iterator[Batch]:
        data = self.dataset
        raw = self._reader.stream([Request(index, False, 0) for index in self._batches])
        for index, x in zip(self._batches, raw):
            yield data.finish(x.to(self.device)), data.labels[index].to(self.device)

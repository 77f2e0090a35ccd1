"""The samples of a process and their order: pure functions of (seed, epoch, rank), so a run can start at any batch."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.seeds import generator

_ORDER = 1  # gives the shuffle other random numbers than augmentation


@dataclass(frozen=True)
class TrainPlan:
    """Shuffled batches of one epoch for one of `world_size` processes; `batch_size` is per process.

    In every epoch all processes share one permutation, and each takes every world_size-th entry, so no sample is seen
    twice. The last samples % world_size entries are left out (they differ between epochs), so that all processes have
    the same number of batches.

    repeats: repeated augmentation (Hoffer et al., 2020). An epoch has the same number of samples, but each sample
    appears ``repeats`` times. The copies go to neighbouring processes, or follow each other if there is only one
    process.
    """

    samples: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    repeats: int = 1

    def __post_init__(self) -> None:
        check_process(self.rank, self.world_size, self.batch_size)
        whole_number("repeats", self.repeats)
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool):
            raise DataError(f"seed must be a whole number, not {self.seed!r}")
        if self.num_batches == 0:
            raise DataError(
                f"{self.samples} training samples over {self.world_size} processes make no batch of {self.batch_size}"
                + ("; drop_last=False keeps the incomplete one." if self.drop_last else ".")
            )

    @property
    def samples_per_rank(self) -> int:
        return self.samples // self.world_size

    @property
    def num_batches(self) -> int:
        whole, rest = divmod(self.samples_per_rank, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> Tensor:
        """Returns this process's sample positions of an epoch, in order."""
        everyone = torch.randperm(self.samples, generator=generator(_ORDER, self.seed, epoch))
        everyone = everyone.repeat_interleave(self.repeats)
        return everyone[: self.samples_per_rank * self.world_size][self.rank :: self.world_size]

    def batches(self, epoch: int, start: int = 0) -> list[Tensor]:
        """Yields the batches `start`, start + 1, ... of an epoch, as sample positions."""
        return list(self.order(epoch).split(self.batch_size))[start : self.num_batches]


def eval_batches(samples: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[Tensor]:
    """Yields batches that cover positions 0..samples-1 exactly once over all processes; nothing is padded or dropped.

    Some processes may get one batch more than others: sum the counts over processes; do not average their averages.
    """
    check_process(rank, world_size, batch_size)
    mine = torch.arange(samples)[rank::world_size]
    return list(mine.split(batch_size)) if len(mine) else []


def check_process(rank: int, world_size: int, batch_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise DataError(f"rank {rank} of {world_size} processes does not exist: 0 <= rank < world_size")
    whole_number("batch_size", batch_size)

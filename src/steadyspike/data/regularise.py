"""The last steps of a training batch: random erasing, then mixing, which turns labels into probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from steadyspike.data.augmentation.erase import MODES, random_erase
from steadyspike.data.augmentation.mix import Mixing
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError


@dataclass(frozen=True)
class Regularise:
    """erase: the share of still images that lose a rectangle, see `random_erase` mixing: see `Mixing`"""

    erase: float = 0.0
    erase_mode: str = "const"
    mixing: Mixing = field(default_factory=Mixing)

    def __post_init__(self) -> None:
        if not 0 <= self.erase <= 1 or self.erase_mode not in MODES:
            raise DataError(
                f"erase is a probability and erase_mode one of {', '.join(MODES)}, "
                f"got {self.erase} and {self.erase_mode!r}"
            )

    def check(self, dataset: DataSet) -> None:
        """Raises DataError if this data set cannot be augmented in this way."""
        if self.erase and dataset.timesteps is not None:
            raise DataError(f"erase is for still images, and '{dataset.name}' has clips")

    def __call__(
        self, x: Tensor, labels: Tensor, dataset: DataSet, epoch: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns x and labels [B], or probabilities [B, classes] in epochs that mix."""
        if self.erase:
            x = random_erase(x, self.erase, self.erase_mode, generator)
        if self.mixing.active(epoch):
            batch_dim = 0 if dataset.timesteps is None else 1
            return self.mixing(x, labels, len(dataset.classes), generator, batch_dim)
        return x, labels

"""Loss and accuracy, summed over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from steadyspike.core.widest import widest
from steadyspike.nn.decision import decided
from steadyspike.nn.sync import sum_over_processes

Predict = Callable[[Tensor], Tensor]


class EpochScores(Protocol):
    """The scores of an epoch, for classes or for boxes."""

    @property
    def loss(self) -> float: ...

    @property
    def samples(self) -> int: ...

    @property
    def selects(self) -> float:
        """Returns the number by which the best epoch is chosen; higher is better."""
        ...

    def cells(self, part: str) -> dict[str, float]:
        """Returns the columns of metrics.csv."""
        ...

    def line(self) -> str:
        """Returns the scores for the display."""
        ...

    def record(self) -> dict[str, Any]:
        """Returns the scores for result.json."""
        ...


class Scores(NamedTuple):
    """loss: mean over samples
    accuracy: in percent, after 1, 2, ..., T time steps (training: after T only)
    """

    loss: float
    accuracy: list[float]
    samples: int

    @property
    def selects(self) -> float:
        return self.accuracy[-1]

    def cells(self, part: str) -> dict[str, float]:
        """Returns the columns of metrics.csv: for training one accuracy, otherwise one per number of time steps."""
        if part == "train":
            return {"train_loss": self.loss, "train_accuracy": self.accuracy[-1]}
        return {f"{part}_loss": self.loss, **{f"{part}_accuracy_{t}": a for t, a in enumerate(self.accuracy, 1)}}

    def line(self) -> str:
        """Returns the accuracies, for the display."""
        return "  ".join(f"{a:6.2f}" for a in self.accuracy)

    def record(self) -> dict[str, Any]:
        """Returns the values for result.json; a non-finite loss becomes null, because JSON cannot represent it."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {"accuracy": self.accuracy, "loss": loss, "samples": self.samples}


class ScoreSums:
    """Sums over samples: [loss, samples, correct answers after each counted step]."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.values = torch.zeros(2 + steps, dtype=torch.float64)
        self._batch, self._count = 0, torch.zeros((), dtype=torch.float64)  # the batch, also as a tensor

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, target: Tensor, predict: Predict) -> None:
        """loss: mean of the batch
        logits: [T, B, K]; the last ``steps`` prefixes of time are counted


        NaN counts as wrong.
        """
        total, batch = logits.shape[0], len(target)
        target = target if target.ndim == 1 else target.argmax(-1)  # mixed labels: the larger share counts
        if batch != self._batch or self._count.device != logits.device:
            dtype = widest(logits.device)
            self._batch, self._count = batch, torch.tensor(float(batch), dtype=dtype, device=logits.device)
            self.values = self.values.to(self._count)
        prefixes = range(total - self.steps + 1, total + 1)
        correct = [(decided(predict(logits[:t])) == target).sum(dtype=self._count.dtype) for t in prefixes]
        self.values += torch.stack([loss.detach() * self._count, self._count, *correct])

    def scores(self, everyone: bool = True) -> Scores:
        """Returns the means over all samples of all processes, or of this one alone."""
        loss, samples, *correct = (sum_over_processes(self.values) if everyone else self.values).tolist()
        count = max(samples, 1.0)
        return Scores(loss / count, [100 * c / count for c in correct], int(samples))

    def merge(self, other: ScoreSums) -> None:
        self.values = self.values.to(other.values) + other.values

    def reset(self) -> None:
        # New tensors, not zeroed ones: tensors made in inference mode cannot be changed outside it.
        self.values = self.values.new_zeros(self.values.shape)

"""`Term`, an addition to the task loss, and `Pass`, the results of a forward that a term can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from steadyspike.nn.probe import Recording


class Pass(NamedTuple):
    """One forward that has run: its input, results and target.

    x: the network's input
    logits: [T, B, K]
    records: what `probe` recorded of neuron layers
    features: outputs of modules by name
    batch_dim: the batch axis of x, 1 in [T, B, ...] and 0 in a static [B, ...]
    """

    x: Tensor
    logits: Tensor
    target: Tensor
    records: Recording
    features: Mapping[str, Tensor]
    batch_dim: int = 1


def check_batch(x: Tensor, batch_dim: int, samples: int) -> None:
    """Raises ValueError if the batch axis of ``x`` does not have ``samples`` elements."""
    if x.ndim <= batch_dim or x.shape[batch_dim] != samples:
        raise ValueError(
            f"the input has shape {list(x.shape)}, which does not have {samples} samples on axis {batch_dim}; give the "
            "Objective batch_dim=0 for static images [B, ...] or batch_dim=1 for frames [T, B, ...]"
        )


class Term(nn.Module):
    """Base class of loss terms: a weighted addition to a task loss.

    records: what it needs from neuron layers (`probe.RECORDS`), with gradient
    features: names of modules whose output it needs
    least_steps: the smallest T it works with
    epoch: set by `Objective.set_epoch`, for terms whose weight depends on the epoch
    """

    records: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    least_steps: ClassVar[int] = 1
    epoch: int = 0

    def forward(self, seen: Pass) -> Tensor:
        """Returns the weighted term, a scalar."""
        raise NotImplementedError

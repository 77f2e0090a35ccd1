"""What a loss term may look at: one finished forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from steadyspike.nn.probe import Recording


class Pass(NamedTuple):
    """x: the network's input; logits [T, B, K]; target; records: what neuron layers did; features: outputs by name.

    batch_dim: the batch axis of x, 1 in [T, B, ...] and 0 in a static [B, ...].
    """

    x: Tensor
    logits: Tensor
    target: Tensor
    records: Recording
    features: Mapping[str, Tensor]
    batch_dim: int = 1


def check_batch(x: Tensor, batch_dim: int, samples: int) -> None:
    """Refuses an input that has not ``samples`` on its batch axis: the axis is then another one."""
    if x.ndim <= batch_dim or x.shape[batch_dim] != samples:
        raise ValueError(
            f"an input of shape {list(x.shape)} has not {samples} samples on axis {batch_dim}; the Objective takes "
            "batch_dim=0 for static images [B, ...] and batch_dim=1 for frames [T, B, ...]"
        )


class Term(nn.Module):
    """A weighted addition to a task loss.

    records: what it needs from neuron layers (`probe.RECORDS`), with gradient. features: names of modules whose output
    it needs. epoch: set by `Objective.set_epoch`, for terms whose weight follows a schedule.
    """

    records: ClassVar[tuple[str, ...]] = ()
    features: tuple[str, ...] = ()
    least_steps: ClassVar[int] = 1
    epoch: int = 0

    def forward(self, seen: Pass) -> Tensor:
        """The weighted term, a scalar."""
        raise NotImplementedError

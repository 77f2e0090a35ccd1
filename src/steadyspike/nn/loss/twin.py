"""LTMD's twin loss (Wang et al., 2022): the batch is fed twice with dropout, and the two outputs should agree."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from steadyspike.nn.loss.kl import kl_divergence
from steadyspike.nn.loss.task import TaskLoss, time_mean, time_mean_cross_entropy


def twin_loss(first: Tensor, second: Tensor, target: Tensor, weight: float = 0.5) -> Tensor:
    """Computes (CE1 + CE2)/2 + weight (KL12 + KL21)/2 of logits [T, B, K]; each KL is a mean over all B*K elements."""
    a, b = time_mean(first), time_mean(second)
    ce = time_mean_cross_entropy(first, target) + time_mean_cross_entropy(second, target)
    kl = (kl_divergence(a, b) + kl_divergence(b, a)) / a.shape[1]
    return 0.5 * ce + weight * 0.5 * kl


class Twin(TaskLoss):
    """`twin_loss` on logits [T, 2B, K]: the batch and its copy in one forward, so that statistics are updated once.

    The network needs dropout; otherwise both copies are the same. Without the copy (in evaluation) the loss is the
    time-mean CE.
    """

    copies: ClassVar[int] = 2

    def __init__(self, weight: float = 0.5) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if logits.shape[1] == target.shape[0]:
            return time_mean_cross_entropy(logits, target)
        if logits.shape[1] != 2 * target.shape[0]:
            raise ValueError(
                f"got {logits.shape[1]} outputs for {target.shape[0]} labels; feed the batch once or twice"
            )
        first, second = logits.chunk(2, dim=1)
        return twin_loss(first, second, target, self.weight)

"""Task losses on logits over time, [T, B, K]. They differ in the time steps that they compare with the label.

The target is class indices [B] or probabilities [B, K].
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def as_logits(logits: Tensor, least_steps: int = 1) -> Tensor:
    """Checks the shape [T, B, K] and returns the logits in float32 or better."""
    if logits.ndim != 3 or logits.shape[0] < least_steps:
        raise ValueError(f"expected logits [T, B, K] with T >= {least_steps}, got shape {list(logits.shape)}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def time_mean(logits: Tensor) -> Tensor:
    """Maps [T, B, K] to [B, K]: the average over time, the usual prediction of spiking networks."""
    return as_logits(logits).mean(0)


def last_step(logits: Tensor) -> Tensor:
    """Maps [T, B, K] to [B, K]: the last time step."""
    return as_logits(logits)[-1]


def time_mean_cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """CE(mean over t of y[t]): the paper's loss."""
    return F.cross_entropy(time_mean(logits), target, label_smoothing=label_smoothing)


def last_step_cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """LTS (Shen et al., 2024): CE(y[T]); the prediction is y[T] too. For static data."""
    return F.cross_entropy(last_step(logits), target, label_smoothing=label_smoothing)


def tet_loss(
    logits: Tensor, target: Tensor, lamb: float = 1e-3, means: float = 1.0, label_smoothing: float = 0.0
) -> Tensor:
    """TET (Deng et al., 2022): (1 - lamb) * mean over t of CE(y[t]) + lamb * MSE(y, means).

    lamb: 1e-3 in the authors' script for DVS data, 1e-4 in their distributed one
    means: the authors' V_th; the second term pulls all logits towards this value, to avoid outliers
    """
    logits = as_logits(logits)
    repeated = target.repeat(logits.shape[0], *([1] * (target.ndim - 1)))
    loss = F.cross_entropy(logits.flatten(0, 1), repeated, label_smoothing=label_smoothing)
    return loss if lamb == 0 else (1 - lamb) * loss + lamb * (logits - means).square().mean()


def smooth_tet_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.01) -> Tensor:
    """Label-smoothed TET (Shen et al., 2024): mean over t of CE(y[t]) with smoothed labels, no MSE term."""
    return tet_loss(logits, target, lamb=0.0, label_smoothing=label_smoothing)


class TaskLoss(nn.Module):
    """Base class of losses on logits [T, B, K]; ``predict`` returns the prediction [B, K] that the loss trains.

    copies: how many times each batch is fed to the model (2 for the twin loss)
    time_mean_only: True if the loss depends on the time mean of the logits only
    """

    copies: ClassVar[int] = 1
    time_mean_only: ClassVar[bool] = True

    def predict(self, logits: Tensor) -> Tensor:
        """[T, B, K] -> [B, K]."""
        return time_mean(logits)


class TimeMeanCE(TaskLoss):
    """`time_mean_cross_entropy`.

    per_step: divide the loss by T
        The authors' code of rate-based backpropagation (neuron ``"rate"``) divides its gradients by T, so use this with
        their learning rates.
    """

    def __init__(self, label_smoothing: float = 0.0, per_step: bool = False) -> None:
        super().__init__()
        self.label_smoothing, self.per_step = label_smoothing, per_step

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = time_mean_cross_entropy(logits, target, self.label_smoothing)
        return loss / logits.shape[0] if self.per_step else loss


class TET(TaskLoss):
    """`tet_loss`."""

    time_mean_only: ClassVar[bool] = False

    def __init__(self, lamb: float = 1e-3, means: float = 1.0, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= lamb <= 1:
            raise ValueError(f"lamb weighs the two terms of TET and must be in [0, 1]; got {lamb}")
        self.lamb, self.means, self.label_smoothing = lamb, means, label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return tet_loss(logits, target, self.lamb, self.means, self.label_smoothing)


class SmoothTET(TET):
    """`smooth_tet_loss`."""

    def __init__(self, label_smoothing: float = 0.01) -> None:
        super().__init__(lamb=0.0, label_smoothing=label_smoothing)


class LTS(TaskLoss):
    """`last_step_cross_entropy`; predicts with the last step."""

    time_mean_only: ClassVar[bool] = False

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return last_step_cross_entropy(logits, target, self.label_smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        return last_step(logits)

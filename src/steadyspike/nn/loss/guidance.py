"""MPS guidance (Ding et al., 2025): each time step learns from the output of its neighbour."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.nn.loss.kl import kl_divergence
from steadyspike.nn.loss.loss_term import Pass, Term
from steadyspike.nn.loss.task import as_logits


def guidance_loss(
    logits: Tensor,
    temperature: float = 2.0,
    drop: float = 0.5,
    teacher: str = "previous",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sum over t >= 2 of KL(softmax(y[t-1]/temperature) || softmax(y[t]/temperature)).

    logits: [T, B, K], T >= 2
    drop: probability that a pair of steps is left out of the sum
    teacher: which step of a pair teaches the other, ``"previous"`` or ``"next"``; it gets no gradient


    No code was found, so these are unverified: the direction, the temperature (2 in the authors' follow-up work), the
    drop probability, and that there is no factor temperature^2.
    """
    _check(temperature, drop, teacher)
    logits = as_logits(logits, least_steps=2)
    keep = torch.rand(logits.shape[0] - 1, generator=generator) >= drop
    loss = logits.new_zeros(())
    for t in keep.nonzero().flatten().tolist():
        student, guide = (logits[t + 1], logits[t]) if teacher == "previous" else (logits[t], logits[t + 1])
        loss = loss + kl_divergence(student, guide.detach(), temperature)
    return loss


def _check(temperature: float, drop: float, teacher: str) -> None:
    if teacher not in ("previous", "next"):
        raise ValueError(f"unknown teacher {teacher!r}; known: previous, next")
    if not 0 <= drop < 1:
        raise ValueError(f"drop must be a probability in [0, 1), got {drop}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")


class Guidance(Term):
    """`guidance_loss` times a weight (1 in the authors' follow-up work)."""

    least_steps: ClassVar[int] = 2

    def __init__(
        self, weight: float = 1.0, temperature: float = 2.0, drop: float = 0.5, teacher: str = "previous"
    ) -> None:
        super().__init__()
        _check(temperature, drop, teacher)
        self.weight, self.temperature, self.drop, self.teacher = weight, temperature, drop, teacher

    def forward(self, seen: Pass) -> Tensor:
        return self.weight * guidance_loss(seen.logits, self.temperature, self.drop, self.teacher)

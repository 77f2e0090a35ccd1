"""Accuracy as a function of the average number of time steps, if a sample stops as soon as it is decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.deploy.stream import Exit
from steadyspike.nn.decision import decided


class ExitPoint(NamedTuple):
    """One rule: the share of correct decisions and the average step at which they were made."""

    rule: Exit | None
    accuracy: float
    steps: float


def first_decision(logits: Tensor, rule: Exit | None) -> tuple[Tensor, Tensor]:
    """Returns class [B] and step [B], from 1, of the first decision on logits [T, B, classes].

    Without a rule, of the last step.

    A class of -1 means that its scores are NaN or infinite."""
    steps = torch.arange(1, len(logits) + 1, dtype=logits.dtype, device=logits.device)
    mean = logits.cumsum(0) / steps.view(-1, 1, 1)
    ready = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if rule is not None:
        ready = torch.stack([rule(m) for m in mean])
    ready[-1] = True
    step = ready.to(torch.uint8).argmax(0)
    chosen = decided(mean).gather(0, step[None])[0]
    return chosen, step + 1


def exit_curve(outputs: Iterable[tuple[Tensor, Tensor]], rules: Sequence[Exit | None]) -> list[ExitPoint]:
    """Evaluates every rule on pairs of logits [T, B, classes] and labels [B]."""
    right, taken, total = [0] * len(rules), [0] * len(rules), 0
    for logits, labels in outputs:
        total += len(labels)
        for i, rule in enumerate(rules):
            chosen, steps = first_decision(logits, rule)
            right[i] += int((chosen == labels).sum())
            taken[i] += int(steps.sum())
    if total == 0:
        raise ValueError("there are no samples to decide")
    return [ExitPoint(rule, r / total, t / total) for rule, r, t in zip(rules, right, taken)]

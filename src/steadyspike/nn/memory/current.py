"""`Term`: a part of an input current, stored so that it can be computed again.

The current of a neuron is the sum of one or two terms: normalised convolution outputs, or plain tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """A part of a current: y, or scale y + shift.

    y: [T, B, C, ...]; T = 1 if it is the same at every step.
    scale, shift: [C] in float32 or better, without gradient: those of a batch norm after y; None for y itself.
    """

    y: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None

    @property
    def normed(self) -> bool:
        return self.scale is not None

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.y, self.scale, self.shift

    def value(self) -> Tensor:
        """The value of the term, in y's dtype and memory format; every call uses the same operations."""
        if self.scale is None or self.shift is None:
            return self.y
        scale, shift = (_over_channels(p, self.y) for p in (self.scale, self.shift))
        if self.y.dtype == scale.dtype:
            return torch.addcmul(shift, self.y, scale)
        return torch.addcmul(shift, self.y.to(scale.dtype), scale).to(self.y.dtype)

    def at(self, where: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """(value, bound) of the elements of [T, B, C, ...] at these coordinates.

        The bound is the sum of the absolute values that are added; the rounding error of the value is proportional to
        it.
        """
        y = self.y[(where[0] % self.y.shape[0], *where[1:])]
        if self.scale is None or self.shift is None:
            return y, y.abs()
        scale, shift = self.scale[where[2]], self.shift[where[2]]
        scaled = y.to(scale.dtype) * scale
        return scaled + shift, scaled.abs() + shift.abs()


def _over_channels(p: Tensor, y: Tensor) -> Tensor:
    """Reshapes [C] so that it broadcasts over [T, B, C, ...]."""
    return p.view(-1, *([1] * (y.ndim - 3)))


def current(terms: tuple[Term, ...], steps: int) -> Tensor:
    """The sum of one or two terms, [T, B, C, ...]; its time stride is 0 if all terms are the same at every step."""
    total = terms[0].value()
    for term in terms[1:]:
        # Not in place: the first value may be a tensor of the caller.
        total = total + term.value()
    return total if total.shape[0] == steps else total.expand(steps, *total.shape[1:])

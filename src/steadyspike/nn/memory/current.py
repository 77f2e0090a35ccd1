"""The terms of an input current: convolution outputs under a batch norm, and plain tensors.

A term is data: what it takes to write its part of the current to memory again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """``y`` [T, B, C, ...] (T = 1 if it is the same at every step), as it is or, with a scale, as scale y + shift.

    scale, shift: [C] in float32 or better: those of a norm that has its statistics, without gradient.
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
        """The term in y's dtype and memory format; always by the same operations."""
        if self.scale is None or self.shift is None:
            return self.y
        scale, shift = (_over_channels(p, self.y) for p in (self.scale, self.shift))
        if self.y.dtype == scale.dtype:
            return torch.addcmul(shift, self.y, scale)
        return torch.addcmul(shift, self.y.to(scale.dtype), scale).to(self.y.dtype)

    def at(self, where: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """(value, bound) at the elements of [T, B, C, ...] with these coordinates.

        The bound is the size of what is added up there: how far off the value is in units of the last place of it.
        """
        y = self.y[(where[0] % self.y.shape[0], *where[1:])]
        if self.scale is None or self.shift is None:
            return y, y.abs()
        scale, shift = self.scale[where[2]], self.shift[where[2]]
        scaled = y.to(scale.dtype) * scale
        return scaled + shift, scaled.abs() + shift.abs()


def _over_channels(p: Tensor, y: Tensor) -> Tensor:
    """[C] shaped to broadcast over [T, B, C, ...]."""
    return p.view(-1, *([1] * (y.ndim - 3)))


def current(terms: tuple[Term, ...], steps: int) -> Tensor:
    """The sum of one or two terms, [T, B, C, ...]; a time stride of 0 where every term is the same at every step."""
    total = terms[0].value()
    for term in terms[1:]:
        # The first value may be a caller's tensor, so nothing is added in place.
        total = total + term.value()
    return total if total.shape[0] == steps else total.expand(steps, *total.shape[1:])

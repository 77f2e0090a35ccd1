"""The terms of an input current: convolution outputs under a batch norm, and plain tensors, with their gradients.

A term is data: what it takes to write the current to memory, again and again with the same bits, and to lead a gradient
of the current back. The norm of a term is y -> weight (y - mean) invstd + bias, per channel (axis 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_batch_norm_backward = torch.ops.aten.native_batch_norm_backward


@dataclass(frozen=True)
class Term:
    """``y`` [T, B, C, ...] (T = 1 if it is the same at every step), as it is or, with a mean, normalised.

    weight, bias, mean, invstd: [C] in float32 or better. ``of_batch``: mean and invstd are those of y itself, so that
    the gradient also flows through them.
    """

    y: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    invstd: Tensor | None = None
    of_batch: bool = False

    @property
    def normed(self) -> bool:
        return self.mean is not None

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.y, self.weight, self.bias, self.mean, self.invstd

    def affine(self) -> tuple[Tensor, Tensor]:
        """(scale, shift), [C] each, with the normalised y = scale y + shift."""
        assert self.weight is not None and self.mean is not None and self.invstd is not None
        scale = self.weight.detach() * self.invstd
        shift = -self.mean * scale
        return scale, shift if self.bias is None else shift + self.bias.detach()

    def value(self) -> Tensor:
        """The term in y's dtype and memory format, without gradient; always by the same operations."""
        y = self.y.detach()
        if not self.normed:
            return y
        scale, shift = (_over_channels(p, y) for p in self.affine())
        if y.dtype == scale.dtype:
            return torch.addcmul(shift, y, scale)
        return torch.addcmul(shift, y.to(scale.dtype), scale).to(y.dtype)

    def gradients(self, dz: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:
        """Gradients of (y, weight, bias), those ``wanted``, from that of the current, ``dz`` [T, B, C, ...]."""
        if self.y.shape[0] == 1 and dz.shape[0] > 1:
            dz = dz.sum(0, keepdim=True)
        if not self.normed:
            return dz.to(self.y.dtype), None, None
        if self.of_batch:
            return self._through_statistics(dz.to(self.y.dtype), wanted)
        assert self.mean is not None and self.invstd is not None
        scale, _ = self.affine()
        wide = dz.to(scale.dtype)
        axes = [i for i in range(dz.ndim) if i != 2]
        centred = (self.y - _over_channels(self.mean, dz)) if wanted[1] else None
        dy = (wide * _over_channels(scale, dz)).to(self.y.dtype) if wanted[0] else None
        dweight = (wide * centred).sum(axes) * self.invstd if centred is not None else None
        return dy, dweight, wide.sum(axes) if wanted[2] else None

    def _through_statistics(self, dz: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:
        folded, y = dz.flatten(0, 1), self.y.flatten(0, 1)
        dy, dweight, dbias = _batch_norm_backward(
            folded, y, self.weight, None, None, self.mean, self.invstd, True, 0.0, list(wanted)
        )
        return dy.view(self.y.shape) if wanted[0] else None, dweight, dbias


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

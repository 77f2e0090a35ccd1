"""Gradients that raise an error if they are differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Refusing(torch.autograd.Function):
    """A zero that depends on some tensors and raises ``reason`` when it is differentiated by one of them."""

    @staticmethod
    def forward(ctx: Any, reason: str, *sources: Tensor) -> Tensor:
        ctx.reason = reason
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise RuntimeError(ctx.reason)


def once(grads: Sequence[Tensor | None], reason: str, *sources: Tensor | None) -> Sequence[Tensor | None]:
    """Returns ``grads``, which raise ``reason`` if they are differentiated by any of the tensors they come from.

    torch's `once_differentiable` checks only the incoming gradients, and raises no error if these are constants. Its
    function that raises the error crashes on batches of gradients (``is_grads_batched``). A sum is used instead,
    because its derivative reaches both summands.
    """
    linked = [t for t in sources if t is not None and t.requires_grad] if torch.is_grad_enabled() else []
    if not linked:
        return grads
    zero = _Refusing.apply(reason, *linked)
    return [None if g is None else g + zero for g in grads]


def trace_of(x: Tensor | None) -> Tensor | None:
    """Returns an empty tensor with the position of ``x`` in the graph, a source for `once` if x itself is not kept.

    A slice alone would keep the memory of x, and torch's ``narrow_copy`` first copies all of a channels_last x. Returns
    None if x has no gradient.
    """
    return x[:0].clone() if x is not None and x.requires_grad and torch.is_grad_enabled() else None

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
    """``grads``, which raise ``reason`` if they are differentiated for any of the tensors they come from.

    torch's `once_differentiable` checks only the incoming gradients, and raises no error if these are constants; its
    function that raises crashes on batches of gradients (``is_grads_batched``). The derivative of a sum reaches these
    too.
    """
    linked = [t for t in sources if t is not None and t.requires_grad] if torch.is_grad_enabled() else []
    if not linked:
        return grads
    zero = _Refusing.apply(reason, *linked)
    return [None if g is None else g + zero for g in grads]


def trace_of(x: Tensor | None) -> Tensor | None:
    """An empty tensor with the position of ``x`` in the graph, a source for `once` if x itself is not kept.

    Not a slice alone: that would keep the memory of x; nor torch's ``narrow_copy``, which first copies all of an x that
    is channels_last. None if x has no gradient.
    """
    return x[:0].clone() if x is not None and x.requires_grad and torch.is_grad_enabled() else None

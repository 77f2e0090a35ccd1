"""The input current scale y + shift of a norm, as `norm_neuron` scans it: its constants, its gradients, and itself.

A block whose shortcut has a norm of its own adds a second such current. Both shifts are then added to the first one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel
from steadyspike.kernels.once import once
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.nn.evaluation_map import evaluation_map
from steadyspike.nn.memory.norm import NotedTDBN
from steadyspike.nn.memory.notes import note_norm, plain_only
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.statistics import per_step_channel
from steadyspike.nn.norm.tdbn import TDBN

NOT_TWICE = (
    "norm and scan as one operator cannot be differentiated twice; for gradients of gradients use neurons with "
    "backend='reference'"
)


class Normed(NamedTuple):
    """``norm(y)`` that is not computed yet: what a shortcut with a norm adds to a current."""

    norm: TimeNorm
    y: Tensor

    def value(self) -> Tensor:
        return self.norm(self.y)


def affine(mean: Tensor, invstd: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift), each [C], of a norm with these statistics."""
    scale = weight * invstd
    return scale, bias - mean * scale


def statistics(norm: TDBN, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, 1 / sd, weight) of a training forward, which moves the running statistics."""
    norm.count_batch()
    with torch.no_grad():
        if has_no_values(y):  # torch would run this operator on zeros of full size
            mean, var = torch.empty_like(norm.running_mean), torch.empty_like(norm.running_mean)
        else:
            mean, var = torch.batch_norm_update_stats(y.flatten(0, 1), *norm.running(), norm.momentum)
        invstd = torch.rsqrt(var + norm.eps)
    return mean, invstd, norm.weight if norm.factor == 1.0 else norm.weight * norm.factor


def norm_gradients(g: Tensor, y: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Those by y, weight and bias of a norm of ``y`` [T, B, C, ...] whose output has the gradient ``g``."""
    folded = (g.flatten(0, 1), y.flatten(0, 1), weight, None, None, mean, invstd)
    dy, dweight, dbias = torch.ops.aten.native_batch_norm_backward(*folded, True, 0.0, [True] * 3)
    return dy.unflatten(0, y.shape[:2]), dweight, dbias


class _NormCurrent(torch.autograd.Function):
    """The current scale y + shift itself, rounded as the scan rounds it: two operators, since one might use an FMA.

    shift: without gradient; None for that of the norm.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, invstd: Tensor, y: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(mean, invstd, y, weight, bias)
        scale, own = affine(mean, invstd, weight, bias)
        scaled = y * per_channel(scale, y.ndim - 1)
        return scaled.add_(per_channel(own if shift is None else shift, y.ndim - 1))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        mean, invstd, y, weight, bias = ctx.saved_tensors
        grads = norm_gradients(g, y, mean, invstd, weight)
        return None, None, *once(grads, NOT_TWICE, g, y, weight, bias), None


def current(norm: TimeNorm, y: Tensor) -> Tensor:
    """norm(y), rounded as the scan rounds it."""
    norm.check_input(y)
    if not norm.training:
        scale, shift = (per_step_channel(c, y.ndim) for c in evaluation_map(norm, y.shape[0]))
        return y * scale + shift
    assert isinstance(norm, TDBN) and norm.bias is not None
    return _shifted(norm, y, *statistics(norm, y), None)


def current_of_two(norm: TDBN, y: Tensor, second: Normed) -> Tensor:
    """norm(y) + second, in training, rounded as the scan rounds it: all of the shift is added to the first."""
    norm.check_input(y)
    second.norm.check_input(second.y)
    assert isinstance(second.norm, TDBN) and norm.bias is not None and second.norm.bias is not None
    more, found = statistics(second.norm, second.y), statistics(norm, y)
    with torch.no_grad():
        shift = affine(*found, norm.bias)[1] + affine(*more, second.norm.bias)[1]
        nothing = torch.zeros_like(shift)
    return _shifted(norm, y, *found, shift) + _shifted(second.norm, second.y, *more, nothing)


def _shifted(norm: TDBN, y: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, shift: Tensor | None) -> Tensor:
    x = _NormCurrent.apply(mean, invstd, y, weight, norm.bias, shift)
    if isinstance(norm, NotedTDBN) and not plain_only():
        with torch.no_grad():
            assert norm.bias is not None
            scale, own = affine(mean, invstd, weight, norm.bias)
            note_norm(x, y, scale, own if shift is None else shift)
    return x

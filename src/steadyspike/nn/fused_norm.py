"""``neuron(norm(y) + extra)`` as one node, in which the input current is never in memory.

If a hook or a tap needs the current, it is computed separately, with the scan's rounding (`shown_current`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.layout import fills_one_block, same_strides_of_steps
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.fused_job import Statistics, mapped, scales_of
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.note import known_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes
from steadyspike.nn.evaluation_map import evaluation_map
from steadyspike.nn.fused import Norms, forward_layer
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.operator_norm import (
    OWN_CODE,
    fits,
    fits_beside,
    is_tdbn,
    operator_norm_neuron,
    reads_current,
    takes_operator,
)


class Normed(NamedTuple):
    """A ``norm(y)`` that is not computed yet: the output of a shortcut with a norm."""

    norm: TimeNorm
    y: Tensor

    def value(self) -> Tensor:
        return self.norm(self.y)


def norm_neuron(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | Normed | None = None) -> Tensor:
    """Computes ``neuron(norm(y) + extra)`` for ``y`` [T, B, C, ...]: as one node if possible, otherwise layer by layer.

    It is one node if the neuron uses the LIF scan of `Neuron`, in eager calls on the CPU in float32 or float64. In
    training the norm must be `TDBN` in one process; in evaluation it may be any norm that `evaluation_map` supports.
    A norm with values per step must also be without gradients (`torch.no_grad`).
    The current is then never in memory. An ``extra`` that is spikes is read, and kept for the backward, as bits. If it
    is the output of a second tdBN (`Normed`), it is not computed either, in training and in evaluation without
    gradients. The only difference from the layers one by one is rounding. Running statistics are the same bit for bit.
    Currents differ in the last digits, so that a potential very close to the threshold may be on its other side.

    On a GPU, operators do the same, also in compiled code, in half precision and over several processes
    (`operator_norm.py`).
    """
    if not (isinstance(norm, TimeNorm) and isinstance(neuron, Neuron)):
        return _as_written(norm, neuron, y, extra)
    if takes_operator(norm, neuron, y, extra):
        return operator_norm_neuron(norm, neuron, y, extra)
    if torch.compiler.is_compiling() or neuron.overridden & OWN_CODE or not fits(norm, y):
        return _as_written(norm, neuron, y, extra)
    # The order matters: a shortcut's norm that cannot be part of the node must be computed before the tensors are
    # checked.
    if isinstance(extra, Normed) and not fits_second(norm, neuron, y, extra):
        extra = extra.value()
    if not fits_node(norm, neuron, y, extra.y if isinstance(extra, Normed) else extra):
        return _as_written(norm, neuron, y, extra)
    neuron.check_input(y)
    norm.check_input(y)
    if reads_current(neuron):
        return neuron(shown_current(norm, y, extra))
    norms = norms_of(norm, y, extra)
    if norms.tensors[0].ndim == 2 and torch.is_grad_enabled():
        # The backward supports only a scale that is the same at all steps. It runs for any input with a gradient, such
        # as V, also if norm and y have none.
        return neuron(shown_current(norm, y, extra))
    return forward_layer(neuron, y, norms)


def repeated_norm_neuron(norm: nn.Module, neuron: nn.Module, y: Tensor, steps: int) -> Tensor:
    """Computes ``neuron(norm(y))`` for ``y`` [1, B, C, ...] that is the same at each of ``steps`` steps.

    norm: treats all steps alike

    The norm is computed once. It is one node with the scan as in `norm_neuron`, except on a GPU.
    """
    shape = steps, *y.shape[1:]
    if not (isinstance(norm, TimeNorm) and isinstance(neuron, Neuron) and _is_one_node(norm, neuron, y)):
        return neuron(norm(y).expand(shape))
    if reads_current(neuron):
        return neuron(shown_current(norm, y, None).expand(shape))
    neuron.check_input(y)
    norm.check_input(y)
    return forward_layer(neuron, y.expand(shape), norms_of(norm, y, None)._replace(once=y))


def _is_one_node(norm: TimeNorm, neuron: Neuron, y: Tensor) -> bool:
    if torch.compiler.is_compiling() or neuron.overridden & OWN_CODE:
        return False
    return fits(norm, y) and fits_node(norm, neuron, y, None)


def norms_of(norm: TimeNorm, y: Tensor, extra: Tensor | Normed | None) -> Norms:
    """Returns what the node computes before the scan; in training this updates the running statistics."""
    second: tuple[Statistics | None, Tensor | None, Tensor | None] = (None, None, None)
    other = extra.y if isinstance(extra, Normed) else extra
    if isinstance(extra, Normed):
        extra.norm.check_input(extra.y)
        second = _parts(extra.norm, extra.y)  # before the other norm, as if the layers ran one by one
    statistics, weight, bias = _parts(norm, y)
    other = None if other is None else unwrapped(other)
    bits = None if other is None or isinstance(extra, Normed) else _bits(other, y)
    return Norms((statistics, second[0]), (weight, bias, other, *second[1:]), bits)


def _as_written(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    extra = extra.value() if isinstance(extra, Normed) else extra
    x = norm(y)
    return neuron(x if extra is None else x + extra)


def fits_node(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | None) -> bool:
    """Returns True if the node supports these tensors, for layers that `fits` has accepted."""
    if y.dtype not in (torch.float32, torch.float64) or not fills_one_block(y) or not _trains_alone(norm):
        return False
    tensors = (y, norm.weight) if extra is None else (y, norm.weight, extra)
    if choose_way(neuron.backend, neuron.spec, *tensors) != "fused":
        return False
    if extra is None:
        return True
    if extra.shape != y.shape or extra.dtype != y.dtype:
        return False
    # One pass reads both, element by element, so they must have the same memory order.
    return extra.stride() == y.stride() or same_strides_of_steps(extra, y)


def _trains_alone(norm: TimeNorm) -> bool:
    """Returns False for a norm whose training the node does not support: over several processes, or without a bias."""
    return not norm.training or (norm.bias is not None and not norm.synchronises)


def fits_second(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Normed) -> bool:
    """True if the norm of ``extra`` may be part of the node: in training, and without gradients in evaluation."""
    if not (is_tdbn(norm) and fits_beside(norm, extra) and _trains_alone(extra.norm)):
        return False
    return (norm.training or not torch.is_grad_enabled()) and fits_node(norm, neuron, y, extra.y)


def batch_statistics(norm: TDBN, y: Tensor) -> tuple[Statistics, Tensor]:
    """Returns mean and 1 / sd of ``y``, and the weight, of a training forward, which updates the running statistics."""
    norm.count_batch()
    with torch.no_grad():
        if has_no_values(y):  # torch would run this operator on zeros of full size
            mean, var = torch.empty_like(norm.running_mean), torch.empty_like(norm.running_mean)
        else:
            mean, var = torch.batch_norm_update_stats(y.flatten(0, 1), *norm.running(), norm.momentum)
        invstd = torch.rsqrt(var + norm.eps)
    return Statistics(mean, invstd), norm.weight if norm.factor == 1.0 else norm.weight * norm.factor


def _parts(norm: TimeNorm, y: Tensor) -> tuple[Statistics | None, Tensor, Tensor]:
    """Returns the statistics of ``y``, weight and bias; in evaluation None, scale and shift."""
    if not norm.training:
        scale, shift = evaluation_map(norm, y.shape[0])
        return None, scale.contiguous(), shift.contiguous()
    assert isinstance(norm, TDBN) and norm.bias is not None
    return *batch_statistics(norm, y), norm.bias


def _bits(extra: Tensor, y: Tensor) -> PackedSpikes | None:
    """Returns the bits of ``extra``, which has the shape and strides of ``y``; None if its values are used."""
    # The saved tensors raise an error for second derivatives. If extra is not saved, y does this instead.
    alone = torch.is_grad_enabled() and extra.requires_grad and not y.requires_grad
    return None if alone else known_spikes(extra)


def shown_current(norm: TimeNorm, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    """Returns norm(y) + extra as a tensor, with the scan's rounding, for hooks and taps that read it."""
    second: tuple[Statistics | None, Tensor | None, Tensor | None] = (None, None, None)
    if isinstance(extra, Normed):
        extra.norm.check_input(extra.y)
        second, extra = _followed(*_parts(extra.norm, extra.y), extra.y), extra.y
    statistics, weight, bias = _followed(*_parts(norm, y), y)
    return mapped(y, scales_of((statistics, second[0]), weight, bias, *second[1:]), extra)


def _followed(
    statistics: Statistics | None, weight: Tensor, bias: Tensor, y: Tensor
) -> tuple[Statistics | None, Tensor, Tensor]:
    """Returns the same parts with the gradients of the statistics."""
    follows = statistics is not None and torch.is_grad_enabled() and y.requires_grad
    return statistics.followed(y) if statistics is not None and follows else statistics, weight, bias

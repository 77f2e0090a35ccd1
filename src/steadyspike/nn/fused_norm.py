"""``neuron(norm(y) + extra)`` as one node, in which the input current is never in memory.

If a hook or a tap needs the current, it is computed separately, with the scan's rounding (`shown_current`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.layout import fills_one_block, same_strides
from steadyspike.kernels.once import trace_of
from steadyspike.kernels.scan.call import start_tensor
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import Statistics, affine_of, fused_job, mapped
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.note import known_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes
from steadyspike.nn.evaluation_map import evaluation_map, has_evaluation_map
from steadyspike.nn.fused import NOTHING, asked, finish, layer_constants, must_be_called, native_start
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.operator_norm import operator_norm_neuron, takes_operator

_CALLED = frozenset({"forward", "run"})


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
    if not fits_layers(norm, neuron):
        return _as_written(norm, neuron, y, extra)
    # The order matters: a shortcut's norm that cannot be part of the node must be computed before the tensors are
    # checked.
    if isinstance(extra, Normed) and not _fits_second(norm, neuron, y, extra):
        extra = extra.value()
    other = extra.y if isinstance(extra, Normed) else extra
    if not fits_tensors(norm, neuron, y, other):
        return _as_written(norm, neuron, y, extra)
    neuron.check_input(y)
    norm.check_input(y)
    if must_be_called(neuron) or any(tap.current for tap in neuron.taps.values()):
        return neuron(shown_current(norm, y, extra))
    if norm.training:
        assert isinstance(norm, TDBN) and norm.bias is not None
        return _trained(norm, neuron, y, extra)
    second: tuple[Tensor | None, ...] = (None, None)
    if isinstance(extra, Normed):
        extra.norm.check_input(extra.y)
        second, extra = evaluation_map(extra.norm, y.shape[0]), extra.y
    scale, shift = (c.contiguous() for c in evaluation_map(norm, y.shape[0]))
    if scale.ndim == 2 and torch.is_grad_enabled():
        # The backward supports only a scale that is the same at all steps. It runs for any input with a gradient, such
        # as V, also if norm and y have none.
        return neuron(shown_current(norm, y, extra))
    return _fused(neuron, y, (scale, shift), extra, second)


def _as_written(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    extra = extra.value() if isinstance(extra, Normed) else extra
    x = norm(y)
    return neuron(x if extra is None else x + extra)


def fits_layers(norm: TimeNorm, neuron: Neuron) -> bool:
    """Returns True if the layers may be one node, for any input."""
    if neuron.overridden & _CALLED or torch.compiler.is_compiling() or must_be_called(norm):
        return False
    if not norm.training:
        return has_evaluation_map(norm)
    return type(norm).forward is TDBN.forward and norm.bias is not None and not norm.synchronises


def fits_tensors(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | None = None) -> bool:
    """Returns True if the node supports these tensors."""
    if y.dtype not in (torch.float32, torch.float64) or y.ndim < 3 or y.numel() < 2 * y.shape[2]:
        return False
    if y.shape[2] != norm.channels or norm.weight.dtype != y.dtype or norm.running_mean.dtype != y.dtype:
        return False
    tensors = (y, norm.weight) if extra is None else (y, norm.weight, extra)
    if not fills_one_block(y) or choose_way(neuron.backend, neuron.spec, *tensors) != "fused":
        return False
    if extra is None:
        return True
    if extra.shape != y.shape or extra.dtype != y.dtype:
        return False
    # One pass reads both, element by element, so they must have the same memory order.
    return extra.stride() == y.stride() or same_strides(extra[0], y[0])


def _fits_second(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Normed) -> bool:
    """True if the norm of ``extra`` may be part of the node: in training, and without gradients in evaluation."""
    other = extra.norm
    if not (isinstance(norm, TDBN) and isinstance(other, TDBN) and norm.channels == other.channels):
        return False
    if norm.training != other.training or (torch.is_grad_enabled() and not norm.training):
        return False
    if other.weight.dtype != y.dtype or other.running_mean.dtype != y.dtype:
        return False
    return fits_layers(other, neuron) and fits_tensors(norm, neuron, y, extra.y)


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


def _trained(norm: TDBN, neuron: Neuron, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    second: tuple[Tensor | None, ...] = (None, None)
    statistics2 = None
    if isinstance(extra, Normed):  # first, because a norm that is used twice updates its statistics in this order
        assert isinstance(extra.norm, TDBN)
        extra.norm.check_input(extra.y)
        statistics2, weight2 = batch_statistics(extra.norm, extra.y)
        second, extra = (weight2, extra.norm.bias), extra.y
    statistics, weight = batch_statistics(norm, y)
    return _fused(neuron, y, (weight, norm.bias), extra, second, (statistics, statistics2))


def _fused(
    neuron: Neuron,
    y: Tensor,
    norm: tuple[Tensor | None, ...],
    extra: Tensor | None,
    second: tuple[Tensor | None, ...] = (None, None),
    statistics: tuple[Statistics | None, Statistics | None] = (None, None),
) -> Tensor:
    """Runs the node with a norm, and a second norm for ``extra``: weight and bias of each, or scale and shift."""
    k, w, links = layer_constants(neuron, y.dtype)
    start = native_start(neuron, y.dtype)
    u0 = None if start is not None else unwrapped(start_tensor(neuron.init.potential(y), y, y.dtype))
    y, extra = unwrapped(y), None if extra is None else unwrapped(extra)
    potential, membrane = asked(neuron) if neuron.taps else NOTHING
    job = fused_job(y, k, w, start or u0, neuron.spec, links, membrane, neuron.channels is not None)
    assert job is not None
    job.potential, job.norms = potential, statistics
    if extra is not None and second[0] is None:
        job.spikes = _bits(extra, y)
        # The bits replace the values of `extra`. An empty tensor takes the position of `extra` in the graph, so that a
        # second derivative still raises its error.
        job.source = None if job.spikes is None else trace_of(extra)
    return finish(neuron, y, job, u0, fused_scan(job, y, unwrapped(k), unwrapped(w), u0, *norm, extra, *second))


def _bits(extra: Tensor, y: Tensor) -> PackedSpikes | None:
    """Returns the bits of ``extra``, which has the shape and strides of ``y``; None if its values are used."""
    # The saved tensors raise an error for second derivatives. If extra is not saved, y does this instead.
    alone = torch.is_grad_enabled() and extra.requires_grad and not y.requires_grad
    return None if alone else known_spikes(extra)


def shown_current(norm: TimeNorm, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    """Returns norm(y) + extra as a tensor, with the scan's rounding, for hooks and taps that read it."""
    scale2 = None
    if isinstance(extra, Normed):
        extra.norm.check_input(extra.y)
        scale2, shift2 = _shown_map(extra.norm, extra.y)
        scale, shift = _shown_map(norm, y)
        shift, extra = shift + shift2, extra.y
    else:
        scale, shift = _shown_map(norm, y)
    return mapped(y, (scale, shift, scale2), extra)


def _shown_map(norm: TimeNorm, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (scale, shift) of the norm, by operators that autograd can differentiate."""
    if not norm.training:
        return evaluation_map(norm, y.shape[0])
    assert isinstance(norm, TDBN) and norm.bias is not None
    (mean, invstd), weight = batch_statistics(norm, y)
    if torch.is_grad_enabled() and y.requires_grad:
        # The values are those of the node. The gradients come from computing the statistics as functions
        # of y.
        var, own = torch.var_mean(y, [i for i in range(y.ndim) if i != 2], correction=0)
        sd = torch.rsqrt(var + norm.eps)
        mean, invstd = mean + (own - own.detach()), invstd + (sd - sd.detach())
    return affine_of(Statistics(mean, invstd), weight, norm.bias)

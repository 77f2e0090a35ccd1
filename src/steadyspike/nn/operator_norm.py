"""``neuron(norm(y) + extra)`` by operators on a GPU, eager and compiled; see `kernels/scan/norm_operator.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.norm_operator import NormedInput, norm_moments, norm_scan
from steadyspike.nn.evaluation_map import evaluation_map, has_evaluation_map
from steadyspike.nn.fused import COMPUTED_IN, NOTHING, asked, must_be_called
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.statistics import batch_map, merged_moments, move_running
from steadyspike.nn.norm.tdbn import TDBN

if TYPE_CHECKING:
    from steadyspike.nn.fused_norm import Normed


OWN_CODE = frozenset({"forward", "run"})  # a neuron that overrides one of these is called


def is_tdbn(norm: nn.Module) -> bool:
    """Returns True if the norm computes what `TDBN` computes, with one scale and shift for all steps."""
    return type(norm).forward is TDBN.forward


def fits(norm: TimeNorm, y: Tensor) -> bool:
    """Returns True if a scan may compute norm(y): tdBN in training, any norm with a map in evaluation, no hooks."""
    if y.ndim < 3 or y.shape[2] != norm.channels or y.numel() < 2 * y.shape[2] or must_be_called(norm):
        return False
    dtype = COMPUTED_IN.get(y.dtype)
    if norm.weight.dtype != dtype or norm.running_mean.dtype != dtype:
        return False
    return is_tdbn(norm) if norm.training else has_evaluation_map(norm)


def fits_beside(norm: TimeNorm, extra: Normed) -> bool:
    """Returns True if a scan may compute the norm of ``extra`` too: two tdBN in the same mode."""
    return is_tdbn(extra.norm) and norm.training == extra.norm.training and fits(extra.norm, extra.y)


def reads_current(neuron: Neuron) -> bool:
    """Returns True if a hook, a tap or the initial potential of the neuron needs the current in memory."""
    if must_be_called(neuron) or neuron.init.reads_input:
        return True
    return bool(neuron.taps) and any(tap.current for tap in neuron.taps.values())


def takes_operator(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | Normed | None) -> bool:
    """Returns True if the layers are computed by operators: on a GPU, if no hook or tap needs the current in memory."""
    if y.is_cpu and neuron.backend != "triton":
        return False
    if neuron.overridden & OWN_CODE or reads_current(neuron) or not fits(norm, y):
        return False
    # The backward has one scale for all steps. It runs for any input with a gradient, also if norm and y have none.
    if not is_tdbn(norm) and torch.is_grad_enabled():
        return False
    if choose_way(neuron.backend, neuron.spec, y, norm.weight) != "triton":
        return False
    if extra is None:
        return True
    other = extra if isinstance(extra, Tensor) else extra.y
    # The kernel can add two affine maps only if each has one scale and shift for all steps.
    alike = isinstance(extra, Tensor) or (is_tdbn(norm) and fits_beside(norm, extra))
    return alike and other.shape == y.shape and other.dtype == y.dtype


def operator_norm_neuron(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    """Computes ``neuron(norm(y) + extra)`` for layers and tensors that `takes_operator` has accepted."""
    neuron.check_input(y)
    other: Tensor | NormedInput | None
    # The shortcut comes first, as if the layers ran one by one: a norm object that is used twice updates its statistics
    # in this order.
    other = extra if extra is None or isinstance(extra, Tensor) else _normed(extra.norm, extra.y)
    first = _normed(norm, y)
    u0 = neuron.init.potential(y)
    if neuron.training:
        neuron.limit_constants()
    potential, membrane = asked(neuron) if neuron.taps else NOTHING
    result = norm_scan(
        *(first, other, u0, neuron.threshold, neuron.leak, neuron.spec),
        membrane=membrane,
        channelwise=neuron.channels is not None,
        potential=potential,
    )
    for tap in neuron.taps.values():
        tap.see(neuron, y, u0, result)
    if neuron.training:
        neuron.init.update(result.active)
    return result.out


def _normed(norm: TimeNorm, y: Tensor) -> NormedInput:
    norm.check_input(y)
    if not norm.training:
        return NormedInput(y, *evaluation_map(norm, y.shape[0]))
    assert isinstance(norm, TDBN)
    norm.count_batch()
    link, mean, var = norm_moments(y)
    batch = merged_moments(mean, var, y.numel() // y.shape[2], sync=norm.sync, group=norm.group.group)
    if norm.tracks:
        move_running(norm.running_mean, norm.running_var, batch, norm.momentum)
    weight = norm.weight if norm.factor == 1.0 else norm.weight * norm.factor
    return NormedInput(y, *batch_map(batch.mean, batch.var, norm.eps, weight, norm.bias), link)

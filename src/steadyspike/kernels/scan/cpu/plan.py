"""`Plan`: the values that all calls of a layer with the same shape share, computed once.

A layer gets the same few shapes repeatedly, and for a small layer computing these values takes longer than the scan.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from steadyspike.core.spec import DETACHES, RESETS
from steadyspike.kernels.layout import DTYPES, KEPT_SHAPES
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.cpu.abi import pack_plan

LEAST_SLOPE = 2.0**-10  # minimum slope of V and 1/tau as functions of their parameters, in gradients
LEAST_FOR_BITS = 4096  # elements; a smaller layer takes microseconds in any case


class LinkRange(NamedTuple):
    """How C++ computes a constant's slope: the code of its function, and its parameter's range; 0 if it is fixed."""

    code: int = 0
    low: float = 0.0
    high: float = 0.0


FIXED = LinkRange()


class Plan(NamedTuple):
    """call: the settings

    fixed: the C struct without its addresses
    memory: allocates a block for MP-Init's statistics; if U[0] is not a tensor, its ``numbers`` begin at byte ``u0``
    compute: the dtype of the arithmetic
    strides: of a new tensor like x, time outermost
    dense: x has these strides
    step, step_strides: of U[T]
    active: shape of MP-Init's statistics
    bits: whether the forward can write its spikes as bits: the fast path, in whole words
    """

    call: Call
    fixed: bytes
    memory: Callable[[], ctypes.Array[Any]]
    u0: int
    numbers: int
    compute: torch.dtype
    strides: tuple[int, ...]
    dense: bool
    step: torch.Size
    step_strides: tuple[int, ...]
    active: tuple[int, int]
    bits: bool


@lru_cache(maxsize=KEPT_SHAPES)
def plan_for(
    x: tuple[torch.Size, tuple[int, ...], torch.dtype],
    call: Call,
    u0: torch.Size,
    v: torch.Size,
    a: torch.Size,
    own_start: bool = False,
    ranges: tuple[LinkRange, LinkRange] = (FIXED, FIXED),
) -> Plan:
    """Builds a plan.

    x: shape, strides and dtype of an x with elements and dense steps
    u0, v, a: their shapes
    own_start: C++ makes U[0]
    ranges: of V and a
    """
    shape, strides, dtype = x
    step, inside = shape[1:], strides[1:]
    n, channels = step.numel(), shape[2] if len(shape) > 2 else 1
    # The codes of csrc/scan/abi.h: 0 one value, 1 per channel, 2 per element.
    per_u0 = 0 if u0.numel() == 1 else 2 if u0 == step and not own_start else 1
    kinds = per_u0, int(v.numel() > 1), int(a.numel() > 1)
    by_channel = channels > 1 and (call.channelwise or 1 in kinds)
    sizes = (channels, inside[1]) if by_channel else (1, n)
    of_v, of_a = ranges
    fixed = pack_plan(
        *(of_v.code, of_a.code, of_v.low, of_v.high, of_a.low, of_a.high, LEAST_SLOPE),
        *(DTYPES.index(dtype), shape[0], n, *sizes, *call.codes, *call.constants, *kinds),
    )
    active = (2, channels if call.channelwise else 1)
    statistics, numbers = math.prod(active), u0.numel() if own_start else 0
    _, _, reset, detach, _, decay_input = call.codes
    common = reset == RESETS["soft"] and detach == DETACHES["none"] and decay_input and not call.membrane
    bits = bool(common) and shape.numel() >= LEAST_FOR_BITS and n % 64 == 0 and dtype != torch.float64
    memory, start = ctypes.c_double * (statistics + numbers), 8 * statistics
    compute, new = torch.promote_types(dtype, torch.float32), (n, *inside)
    return Plan(call, fixed, memory, start, numbers, compute, new, strides == new, step, inside, active, bits)

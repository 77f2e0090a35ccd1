"""`ScanPlan`: the values that all calls of a scan with the same shape share, computed once.

A layer gets the same few shapes repeatedly, and for a small layer computing these values takes longer than the scan.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from steadyspike.core.spec import DETACHES, RESETS
from steadyspike.kernels.layout import DTYPES, KEPT_SHAPES
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.cpu.abi import pack_settings

LEAST_FOR_BITS = 4096  # elements; a smaller layer takes microseconds in any case


class ScanPlan(NamedTuple):
    """settings: the C struct without its addresses
    compute: the dtype of the arithmetic
    strides: of a new tensor like x, time outermost
    step, step_strides: of U[T]
    active: shape of MP-Init's statistics
    bits: whether the forward can write its spikes as bits at almost no cost, because it uses the fast path, in whole
        words
    """

    settings: bytes
    compute: torch.dtype
    strides: tuple[int, ...]
    step: torch.Size
    step_strides: tuple[int, ...]
    active: tuple[int, int]
    bits: bool


@lru_cache(maxsize=KEPT_SHAPES)
def plan_for(
    shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, call: Call, kinds: tuple[int, int, int]
) -> ScanPlan:
    """Builds a plan for an x with elements and dense steps of this shape, strides and dtype.

    kinds: those of csrc/scan/abi.h
    """
    step, inside = shape[1:], strides[1:]
    n, channels = step.numel(), shape[2] if len(shape) > 2 else 1
    by_channel = channels > 1 and (call.channelwise or 1 in kinds)
    sizes = (channels, strides[2]) if by_channel else (1, n)
    settings = pack_settings(DTYPES.index(dtype), shape[0], n, *sizes, *call.codes, *call.constants, *kinds)
    active = (2, channels if call.channelwise else 1)
    _, _, reset, detach, _, decay_input = call.codes
    common = reset == RESETS["soft"] and detach == DETACHES["none"] and decay_input and not call.membrane
    bits = bool(common) and shape.numel() >= LEAST_FOR_BITS and n % 64 == 0 and dtype != torch.float64
    return ScanPlan(settings, torch.promote_types(dtype, torch.float32), (n, *inside), step, inside, active, bits)

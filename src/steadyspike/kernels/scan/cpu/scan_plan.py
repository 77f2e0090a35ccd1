"""`ScanPlan`: what all calls of a scan have in common that differ in values only, worked out once.

A layer sees the same few shapes again and again; on a small layer working this out takes longer than the scan.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from steadyspike.kernels.layout import DTYPES
from steadyspike.kernels.scan.contract import Call, Scan
from steadyspike.kernels.scan.cpu.abi import pack_settings


class ScanPlan(NamedTuple):
    """settings: the C struct up to its addresses. compute: the dtype of the arithmetic. strides: of a new tensor like
    x, time outermost. step, step_strides: of U[T]. active: shape of MP-Init's statistics."""

    settings: bytes
    compute: torch.dtype
    strides: tuple[int, ...]
    step: torch.Size
    step_strides: tuple[int, ...]
    active: tuple[int, int]


def plan_of(scan: Scan) -> ScanPlan:
    """For an x with elements and dense steps."""
    x, u0, v, a, call, _ = scan
    per_u0 = 0 if u0.numel() == 1 else 2 if u0.shape == x.shape[1:] else 1
    return _plan(x.shape, x.stride(), x.dtype, call, (per_u0, v.numel() > 1, a.numel() > 1))


@lru_cache(maxsize=4096)
def _plan(
    shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, call: Call, kinds: tuple[int, int, int]
) -> ScanPlan:
    """kinds: of u0, v and a, see csrc/scan/abi.h."""
    step, inside = shape[1:], strides[1:]
    n, channels = step.numel(), shape[2] if len(shape) > 2 else 1
    by_channel = channels > 1 and (call.channelwise or 1 in kinds)
    sizes = (channels, strides[2]) if by_channel else (1, n)
    settings = pack_settings(DTYPES.index(dtype), shape[0], n, *sizes, *call.codes, *call.constants, *kinds)
    active = (2, channels if call.channelwise else 1)
    return ScanPlan(settings, torch.promote_types(dtype, torch.float32), (n, *inside), step, inside, active)

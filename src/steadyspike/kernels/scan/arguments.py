"""Argument checks of the scan: a compiled kernel gets pointers, so its arguments must be correct."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, same_strides


def check_arguments(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> None:
    """Checks the arguments of `lif_scan`.

    x: [T >= 1, B, ...]
    v, a: [1] or [C]
    u0: [1], [C] or broadcastable to x.shape[1:]
    """
    for name, p in (("u0", u0), ("v", v), ("a", a)):
        if p.device != x.device:
            raise ValueError(f"{name} is on {p.device} but x is on {x.device}; move one of them")
    check_shapes(x.shape, x.dtype, u0.shape, v.shape, a.shape)


def check_shapes(x: torch.Size, dtype: torch.dtype, u0: torch.Size, v: torch.Size, a: torch.Size) -> None:
    """The part of `check_arguments` that needs no tensor.

    dtype: of x
    """
    if len(x) < 2 or x[0] < 1:
        raise ValueError(f"x must be [T, B, ...] with at least one time step, got shape {list(x)}")
    if dtype not in DTYPES:
        raise TypeError(f"x must be float64, float32, bfloat16 or float16, got {dtype}")
    channels, step = x[2] if len(x) > 2 else 1, x[1:]
    for name, p in (("v", v), ("a", a)):
        if p.numel() != 1 and p != (channels,):
            raise ValueError(f"{name} must have 1 element or one per channel ([{channels}]), got shape {list(p)}")
    broadcasts = len(u0) == len(step) and all(n in (1, s) for n, s in zip(u0, step))
    if not (u0.numel() == 1 or u0 == (channels,) or broadcasts):
        raise ValueError(f"u0 must have shape [1], [{channels}] or {list(step)}, got {list(u0)}")


def check_contract(x: Tensor, u0: Tensor, v: Tensor, a: Tensor, dtype: torch.dtype) -> None:
    """Checks what a backend relies on (`contract.py`), for calls of the operator that do not come from `lif_scan`.

    x: with dense steps
    """
    check_arguments(x, u0, v, a)
    for name, p in (("u0", u0), ("v", v), ("a", a)):
        if p.dtype != dtype:
            raise TypeError(f"{name} must be {dtype} for x in {x.dtype}, got {p.dtype}")
    if x.numel() == 0:
        return
    if not v.is_contiguous() or not a.is_contiguous():
        raise ValueError("v and a must be contiguous")
    if u0.numel() != 1 and not (same_strides(u0, x[0]) or (u0.shape == x.shape[2:3] and u0.is_contiguous())):
        raise ValueError("u0 must have 1 element, one per channel, or the shape and memory order of x[0]")

"""Argument checks of the scan: a compiled kernel gets pointers, so nothing wrong may reach it."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, channel_count, is_dense, same_strides


def check_arguments(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> None:
    """What `lif_scan` accepts: x [T >= 1, B, ...]; v, a [1] or [C]; u0 [1], [C] or broadcastable to x.shape[1:]."""
    if x.ndim < 2 or x.shape[0] < 1:
        raise ValueError(f"x must be [T, B, ...] with at least one time step, got shape {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"x must be float64, float32, bfloat16 or float16, got {x.dtype}")
    for name, p in (("u0", u0), ("v", v), ("a", a)):
        if p.device != x.device:
            raise ValueError(f"{name} is on {p.device} but x is on {x.device}; move one of them")
    channels = channel_count(x)
    for name, p in (("v", v), ("a", a)):
        if p.numel() != 1 and p.shape != (channels,):
            raise ValueError(f"{name} must have 1 element or one per channel ([{channels}]), got shape {list(p.shape)}")
    step = x.shape[1:]
    broadcasts = u0.ndim == len(step) and all(n in (1, s) for n, s in zip(u0.shape, step))
    if not (u0.numel() == 1 or u0.shape == (channels,) or broadcasts):
        raise ValueError(f"u0 must have shape [1], [{channels}] or {list(step)}, got {list(u0.shape)}")


def check_contract(x: Tensor, u0: Tensor, v: Tensor, a: Tensor, dtype: torch.dtype) -> None:
    """What a backend relies on (`contract.py`), for calls that reach the operator by another way than `lif_scan`."""
    check_arguments(x, u0, v, a)
    for name, p in (("u0", u0), ("v", v), ("a", a)):
        if p.dtype != dtype:
            raise TypeError(f"{name} must be {dtype} for x in {x.dtype}, got {p.dtype}")
    if x.numel() == 0:
        return
    if not is_dense(x[0]):
        raise ValueError("x[t] must be dense in memory; call steadyspike.kernels.scan.lif_scan, which copies if needed")
    if not v.is_contiguous() or not a.is_contiguous():
        raise ValueError("v and a must be contiguous")
    if u0.numel() != 1 and not (same_strides(u0, x[0]) or (u0.shape == x.shape[2:3] and u0.is_contiguous())):
        raise ValueError("u0 must have 1 element, one per channel, or the shape and memory order of x[0]")

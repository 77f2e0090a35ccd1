"""Maps between unconstrained parameters and valid neuron constants (paper, "Stable parameterization").

tau = 1 / sigmoid(w) lies above 1 and V = softplus(k) above 0, whatever the optimizer does to w and k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def k_from_threshold(threshold: float) -> float:
    """k with softplus(k) = threshold, accurate for tiny thresholds too (log of expm1 would lose them)."""
    if not 1e-30 <= threshold <= 1e30:
        raise ValueError(f"threshold must be a number above 0 (from 1e-30 to 1e30, as float32 holds), got {threshold}")
    return threshold + math.log(-math.expm1(-threshold))


def w_from_tau(tau: float) -> float:
    """w with 1 / sigmoid(w) = tau."""
    if not 1 + 1e-6 <= tau <= 1e8:
        raise ValueError(f"tau must be a number above 1 (from 1.000001 to 1e8, which float32 holds), got {tau}")
    return -math.log(tau - 1)


def threshold_from_k(k: Tensor) -> Tensor:
    """V = softplus(k) in float32 or better; the floor keeps V above 0 where softplus underflows (k < -87)."""
    k = k.to(torch.promote_types(k.dtype, torch.float32))
    return F.softplus(k).clamp_min(torch.finfo(k.dtype).tiny)


def leak_from_w(w: Tensor) -> Tensor:
    """a = 1/tau = sigmoid(w) in float32 or better."""
    return torch.sigmoid(w.to(torch.promote_types(w.dtype, torch.float32)))


def per_layer_or_channel(value: float | Sequence[float] | Tensor, channels: int | None, name: str) -> list[float]:
    """``value`` as a list of 1 (layer-wise) or ``channels`` floats."""
    many = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
    try:
        values = [float(v) for v in (value if many else [value])]  # type: ignore[union-attr, arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, or one per channel, got {value!r}") from None
    wanted = channels or 1
    if len(values) == 1:
        return values * wanted
    if len(values) != wanted:
        raise ValueError(
            f"{name} has {len(values)} values, but the layer has {'channels=' + str(channels) if channels else 'one'}"
        )
    return values

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
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"threshold must be a finite number above 0, got {threshold}")
    return threshold + math.log(-math.expm1(-threshold))


def w_from_tau(tau: float) -> float:
    """w with 1 / sigmoid(w) = tau."""
    if not (math.isfinite(tau) and tau > 1):
        raise ValueError(f"tau must be a finite number above 1, got {tau}")
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
    values = [float(v) for v in torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(-1)]
    wanted = channels or 1
    if len(values) == 1:
        return values * wanted
    if len(values) != wanted:
        raise ValueError(
            f"{name} has {len(values)} values, but the layer has {'channels=' + str(channels) if channels else 'one'}"
        )
    return values

"""Spike functions of other libraries: the kernels' surrogate that equals one, or the function on the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import ArcTan, Rect, Sigmoid, Surrogate, Triangle


@dataclass(frozen=True)
class SpikeFunction:
    """Another library's spike function: its forward decides which neurons fire, and its backward is the gradient.

    function: x -> spikes, where x = M - V (family "as") or M/V - 1 ("rs", "trsg")
    """

    name: str
    function: Callable[[Tensor], Tensor]

    def __call__(self, m: Tensor, v: Tensor, spec: ScanSpec) -> Tensor:
        s = self.function(m - v if spec.family == "as" else m / v - 1).to(m.dtype)
        # A NaN potential gives NaN, so that it is not treated as "no spike".
        return torch.where(torch.isnan(m), m, s)


# SpikingJelly: f(x, alpha), where alpha is a height or a steepness; fires at x >= 0.
_SPIKINGJELLY: dict[str, Callable[[float], Surrogate]] = {
    "Sigmoid": lambda alpha: Sigmoid(1 / alpha),
    "ATan": lambda alpha: ArcTan(alpha),
    "PiecewiseQuadratic": lambda alpha: Triangle(1 / alpha),
    "Rect": lambda alpha: Rect(1 / alpha),
}


def from_spikingjelly(function: object) -> Surrogate | None:
    """Returns the kernels' surrogate that equals one of SpikingJelly; None if there is none."""
    cls = type(function)
    plain = cls.__module__ == "spikingjelly.activation_based.surrogate" and "forward" not in vars(function)
    alpha = getattr(function, "alpha", None)
    if not plain or cls.__name__ not in _SPIKINGJELLY or not isinstance(alpha, (int, float)) or not alpha > 0:
        return None
    if not getattr(function, "spiking", False) or getattr(function, "_forward_hooks", None):
        return None
    return _SPIKINGJELLY[cls.__name__](float(alpha))

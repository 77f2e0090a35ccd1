"""A norm in evaluation mode as an affine map: scale and shift per channel from its running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from steadyspike.nn.norm.bn import StepBN
from steadyspike.nn.norm.bntt import BNTT
from steadyspike.nn.norm.statistics import batch_map
from steadyspike.nn.norm.tab import TAB
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm.tebn import TEBN


def _running(norm: Any, steps: int) -> tuple[Tensor, Tensor]:
    """Returns (scale, shift) of weight factor (x - mean) / sqrt(var + eps) + bias.

    If values are per step, those of the first ``steps`` are used.
    """
    mean, var, weight, bias = (
        p[:steps] if p is not None and p.ndim == 2 else p
        for p in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    factor = getattr(norm, "factor", 1.0)
    return batch_map(mean, var, norm.eps, weight if factor == 1.0 else weight * factor, bias)


def _tebn(norm: TEBN, steps: int) -> tuple[Tensor, Tensor]:
    scale, shift = _running(norm, steps)
    p = norm.p[:steps, None].to(scale.dtype)
    return p * scale, p * shift


def _tab(norm: TAB, steps: int) -> tuple[Tensor, Tensor]:
    scale, shift = _running(norm, steps)
    importance = norm.p[:steps, None].square()
    return importance * scale, importance * shift


# The key is the forward, so that a subclass that overrides forward is not in the table.
_MAPS: dict[Callable[..., Tensor], Callable[[Any, int], tuple[Tensor, Tensor]]] = {
    TDBN.forward: _running,
    StepBN.forward: _running,
    BNTT.forward: _running,
    TEBN.forward: _tebn,
    TAB.forward: _tab,
}


def has_evaluation_map(norm: nn.Module) -> bool:
    """Returns True if `evaluation_map` supports the norm."""
    return type(norm).forward in _MAPS


def evaluation_map(norm: nn.Module, steps: int) -> tuple[Tensor, Tensor]:
    """Returns (scale, shift) with ``norm(x) = scale x + shift`` in evaluation mode, up to rounding: [C], or [T, C].

    They can be differentiated by the norm's parameters.
    ``steps``: how many time steps x has, which may be fewer than the norm's
    """
    return _MAPS[type(norm).forward](norm, steps)

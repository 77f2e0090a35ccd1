"""The table of norms by name, from which a network's argument ``norm=`` chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from steadyspike.nn.norm.bn import StepBN
from steadyspike.nn.norm.bntt import BNTT
from steadyspike.nn.norm.tab import TAB
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm.tebn import TEBN


class NormInfo(NamedTuple):
    """An entry of `NORMS`.

    per_step: it has parameters per time step
    scaled: it depends on V of the next neuron
    """

    build: Callable[[int, int, float, float], nn.Module]  # (channels, timesteps, threshold, alpha)
    per_step: bool
    summary: str
    scaled: bool = False


NORMS: dict[str, NormInfo] = {
    "tdbn": NormInfo(lambda c, t, v, a: TDBN(c), False, "joint statistics over time and batch (the paper's use)"),
    "tdbn-scaled": NormInfo(
        lambda c, t, v, a: TDBN(c, "factor", v, a), False, "tdbn with the fixed factor alpha * threshold", True
    ),
    "tdbn-gamma": NormInfo(
        lambda c, t, v, a: TDBN(c, "gamma", v, a), False, "tdbn whose weight starts at alpha * threshold", True
    ),
    "bn": NormInfo(lambda c, t, v, a: StepBN(c), False, "ordinary batch norm at every step"),
    "bntt": NormInfo(lambda c, t, v, a: BNTT(c, t), True, "a separate batch norm per step, no bias"),
    "tebn": NormInfo(lambda c, t, v, a: TEBN(c, t), True, "joint statistics, a learned weight per step"),
    "tab": NormInfo(lambda c, t, v, a: TAB(c, t), True, "statistics of steps 1..t, parameters per step"),
    "none": NormInfo(lambda c, t, v, a: nn.Identity(), False, "no norm"),
}


NormLike = str | Callable[[int], nn.Module]


def check_norm(norm: NormLike) -> None:
    """Raises an error if ``norm`` is neither a name of `NORMS` nor a callable from channels to a module."""
    if norm == "mpbn":
        raise ValueError(
            "mpbn normalises the membrane inside the neuron, not its input: use the 'mpbn' neuron, "
            "with norm='tdbn' (as its authors do) or another norm before it"
        )
    if isinstance(norm, str):
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}; known: {', '.join(NORMS)}")
    elif isinstance(norm, nn.Module):
        raise TypeError("norm is a layer, but a network needs several: pass a callable from channels to a layer")
    elif not callable(norm):
        raise TypeError(
            f"norm must be a name ({', '.join(NORMS)}) or a callable from channels to a module, got {norm!r}"
        )


def make_norm(
    norm: NormLike,
    channels: int,
    *,
    timesteps: int | None = None,
    threshold: float | None = None,
    alpha: float = 1.0,
) -> nn.Module:
    """Builds a norm over [T, B, channels, ...] from a name of `NORMS` or a callable that gets ``channels``.

    timesteps: T, required by norms with parameters per step
    threshold, alpha: only for the two scaled tdbn variants. threshold is V of the neuron that follows; alpha is 1, or
        1/sqrt(2) if two branches are added.
    """
    check_norm(norm)
    if not isinstance(norm, str):
        return norm(channels)
    info = NORMS[norm]
    if info.scaled and threshold is None:
        raise ValueError(f"norm {norm!r} needs threshold, the V of the neuron that follows, which scales it")
    if info.per_step and timesteps is None:
        raise ValueError(f"norm {norm!r} has parameters per time step: give timesteps")
    return info.build(channels, timesteps or 1, 1.0 if threshold is None else threshold, alpha)

"""`wake`: lower the thresholds of layers that never fire to where they do."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from steadyspike.core.lif import ScanResult
from steadyspike.nn.health import tapped
from steadyspike.nn.neuron import Neuron, Tap
from steadyspike.nn.parametrization import k_from_threshold

_SAMPLES = 1_000_000


def _first_silent(model: nn.Module, x: Tensor) -> tuple[str, Tensor] | None:
    """Name and a sample of the membrane potentials of the first layer, in call order, that never fires on ``x``."""
    silent: list[tuple[str, Tensor]] = []

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not silent and result.m is not None and not result.out.any():
                m = result.m.flatten()
                silent.append((name, m[:: max(1, m.numel() // _SAMPLES)].float()))

        return Tap(see, membrane=True)

    with tapped(model, "wake", make):
        model(x)
    return silent[0] if silent else None


def _exceeded_by(m: Tensor, rate: float) -> float:
    """A positive number that about ``rate`` of the potentials exceed; 0 if none is positive."""
    threshold = m.quantile(1 - rate)
    positive = m[m > 0]
    if threshold <= 0 and len(positive):
        threshold = positive.median()
    return max(float(threshold), 0.0)


@torch.no_grad()
def wake(model: nn.Module, x: Tensor, rate: float = 0.05) -> dict[str, float]:
    """Gives every layer that never fires on the batch ``x`` a threshold that about ``rate`` of its potentials exceed.

    Layer after layer, since silence upstream makes silence downstream; layers that fire stay as they are. Where fewer
    than ``rate`` of the potentials are positive at all, half of those exceed it. Returns the new thresholds by layer.
    Statistics buffers of ``model`` are left alone: a copy in training mode does the runs.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must lie between 0 and 1, got {rate}")
    probe = copy.deepcopy(model).train()
    changed: dict[str, float] = {}
    while (silent := _first_silent(probe, x)) is not None:
        name, m = silent
        threshold = _exceeded_by(m, rate)
        if name in changed or not threshold > 0:
            raise RuntimeError(f"layer '{name}' cannot be woken: its potentials reach only {m.max():.3g}")
        for net in (model, probe):
            k = getattr(net.get_submodule(name), "k", None)
            if not isinstance(k, nn.Parameter):
                raise ValueError(f"layer '{name}' has no threshold parameter k that could be lowered")
            k.fill_(k_from_threshold(threshold))
        changed[name] = threshold
    return changed

"""Notes of `check_model` about settings that work, but trained worse in our measurements (docs/results.md)."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.initial_potential import ConstantInit
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap, neurons

FEW_STEPS = 4  # measured at T = 2 and T = 4
DEEP = 7  # the number of spiking layers of the smallest network measured
# Standard deviation of the input in units of V. Measured: 1 (V = 1 after a norm) trains well, 10 (V = 0.1) does not.
WIDE_INPUT = 5.0


class Seen(NamedTuple):
    """A layer's number of steps, and the standard deviation of its input over V."""

    steps: int
    spread: float


def settings_notes(model: nn.Module, x: Tensor) -> list[str]:
    """Returns one sentence per finding; empty if the settings are those that trained well."""
    seen: dict[str, Seen] = {}

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if layer.spiking:
                v = float(layer.threshold.detach().double().abs().mean())
                seen[name] = Seen(len(current), float(current.detach().double().std()) / max(v, 1e-12))

        return Tap(see)

    with torch.no_grad(), tapped(model, "settings", make):
        model.train()
        model(x)
    layers = {name: layer for name, layer in neurons(model).items() if name in seen}
    return [note for note in (_start(layers, seen), _window(layers, seen)) if note]


def _start(layers: dict[str, Neuron], seen: dict[str, Seen]) -> str:
    """Finds a start at zero with few steps and many layers: here MP-Init helps."""
    steps = max((one.steps for one in seen.values()), default=0)
    zero = [layer for layer in layers.values() if isinstance(layer.init, ConstantInit) and layer.init.value == 0]
    if not 2 <= steps <= FEW_STEPS or len(zero) < DEEP or len(zero) < len(layers):
        return ""
    return (
        f"all {len(zero)} layers start at U = 0 and there are only {steps} time steps, so the distribution is "
        "different in the first steps and the last: init='mp' raised the accuracy of the convolutional networks that "
        "we measured, most of all after the first step (docs/results.md)"
    )


def _window(layers: dict[str, Neuron], seen: dict[str, Seen]) -> str:
    """Finds a window that is as wide as V, with inputs that are much wider: few neurons get a gradient."""
    narrow = [seen[name].spread for name, layer in layers.items() if layer.spec.family in ("rs", "trsg")]
    if len(narrow) < len(layers) or not narrow or not (spread := statistics.median(narrow)) >= WIDE_INPUT:
        return ""  # also for NaN: an input of one value has no standard deviation
    families = "/".join(sorted({layer.spec.family for layer in layers.values()}))
    return (
        f"the inputs have a standard deviation of {spread:.0f} V (median of the layers), and the window of "
        f"gradient='{families}' is only as wide as V: V = 0.1 after a norm trained worse "
        "than V = 1, and worse than gradient='as' "
        "(docs/results.md)"
    )

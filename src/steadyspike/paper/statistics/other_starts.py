"""Other starts than MP-Init's constant, for a trained network: sampled, quantile-matched, per channel.

The supplement leaves alternative initial states open. These are estimated from U[T] of the neurons that fired, on
training samples. They replace every layer's start temporarily; weights and norms do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadyspike.analysis.networks.observe import evaluating
from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.initial_potential import ConstantInit, InitialPotential
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap, neurons

KINDS = ("zero", "layer mean", "channel mean", "sampled", "quantile-matched")
_LEVELS = 201


@dataclass(frozen=True)
class FinalPotentials:
    """U[T] of a layer's active neurons: ``quantiles`` [201] at equal levels, ``mean``, and ``channels`` [C] means."""

    quantiles: Tensor
    mean: float
    channels: Tensor


class SampledInit(InitialPotential):
    """Every neuron's U[0] is drawn from the estimated distribution, with its own generator."""

    def __init__(self, quantiles: Tensor, seed: int = 0) -> None:
        super().__init__()
        self.quantiles, self.seed = quantiles, seed

    def potential(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return at_level(self.quantiles, torch.rand(x.shape[1:], generator=generator)).to(x)


class QuantileInit(InitialPotential):
    """U[0] follows the rank of the first input: the neuron with the strongest input starts highest."""

    def __init__(self, quantiles: Tensor) -> None:
        super().__init__()
        self.quantiles = quantiles

    def potential(self, x: Tensor) -> Tensor:
        first = x[0].detach().flatten(1)
        rank = first.argsort(1).argsort(1).double() / max(first.shape[1] - 1, 1)
        return at_level(self.quantiles, rank).view(x.shape[1:]).to(x)


class ChannelInit(InitialPotential):
    """A constant per channel (axis 2 of x)."""

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = means

    def potential(self, x: Tensor) -> Tensor:
        return self.means.view(-1, *([1] * (x.ndim - 3))).expand(x.shape[1:]).to(x)


def at_level(quantiles: Tensor, level: Tensor) -> Tensor:
    """Returns the value at a level in 0..1, linear between the quantiles."""
    position = level.double() * (len(quantiles) - 1)
    low = position.floor().long().clamp(0, len(quantiles) - 2)
    share = position - low
    return quantiles[low] * (1 - share) + quantiles[low + 1] * share


def final_potentials(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, FinalPotentials]:
    """Measures U[T] of every layer's active neurons; a layer that never fired is left out."""
    values: dict[str, list[Tensor]] = {}
    sums: dict[str, Tensor] = {}

    def make(name: str) -> Tap:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if layer.spiking:
                fired = (result.out > 0).any(0)
                values.setdefault(name, []).append(result.u[fired].double())
                axes = [i for i in range(fired.ndim) if i != 1]
                pair = torch.stack([(result.u * fired).double().sum(axes), fired.double().sum(axes)])
                sums[name] = sums.get(name, torch.zeros_like(pair)) + pair

        return Tap(see)

    with evaluating(model), tapped(model, f"final {id(values)}", make):
        for x in batches:
            model(x)
    # The levels are the middles of equal shares. With the extremes, interpolation towards them would widen the
    # distribution.
    levels, potentials = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS, {}
    for name, parts in values.items():
        flat = torch.cat(parts)
        if len(flat):
            total, count = sums[name]
            mean = float(flat.mean())
            channels = torch.where(count > 0, total / count.clamp_min(1), mean)
            thinned = flat[:: max(1, len(flat) // 1_000_000)]
            potentials[name] = FinalPotentials(torch.quantile(thinned, levels), mean, channels)
    return potentials


@contextmanager
def starting(model: nn.Module, kind: str, potentials: Mapping[str, FinalPotentials]) -> Iterator[None]:
    """Starts every layer by ``kind`` (one of `KINDS`) while the block runs."""
    if kind not in KINDS:
        raise ValueError(f"unknown start {kind!r}; known: {', '.join(KINDS)}")
    layers = {name: layer for name, layer in neurons(model).items() if layer.spiking}
    before = {name: layer.init for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            layer.init = _init(kind, potentials.get(name))
        yield
    finally:
        for name, layer in layers.items():
            layer.init = before[name]


def _init(kind: str, potentials: FinalPotentials | None) -> InitialPotential:
    if potentials is None or kind == "zero":
        return ConstantInit(0.0)
    if kind == "layer mean":
        return ConstantInit(potentials.mean)
    if kind == "channel mean":
        return ChannelInit(potentials.channels)
    return SampledInit(potentials.quantiles) if kind == "sampled" else QuantileInit(potentials.quantiles)

"""How a network gets its neurons: a class or callable is called, a `NeuronSpec` is built for its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn


class Site(NamedTuple):
    """Where in a network a neuron layer sits: its channels and, where the network knows it, its spatial size."""

    channels: int
    size: tuple[int, ...] | None = None
    timesteps: int | None = None


@runtime_checkable
class Placeable(Protocol):
    """Something that builds a neuron layer for a site (per-channel constants, learned potentials need to know it)."""

    def at(self, site: Site) -> nn.Module: ...


NeuronLike = Placeable | Callable[[], nn.Module]


def neuron_for(neuron: NeuronLike, site: Site) -> nn.Module:
    """A new neuron layer for ``site``: ``neuron.at(site)`` if it has that, else ``neuron()`` (e.g. ``ss.LIF``)."""
    layer = neuron.at(site) if isinstance(neuron, Placeable) else neuron()
    if not isinstance(layer, nn.Module):
        raise TypeError(f"the neuron factory {neuron!r} returned {type(layer).__name__}, not a module")
    return layer


def starting_threshold(neuron: NeuronLike, site: Site) -> float:
    """V of a new layer for ``site``: what a norm that is scaled by the threshold takes."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        v = getattr(neuron_for(neuron, site), "threshold", None)
    values = v.detach().flatten().tolist() if isinstance(v, torch.Tensor) else []
    if len(set(values)) != 1 or not values[0] > 0:
        found = f"has the thresholds {values}" if values else "says no threshold"
        raise ValueError(f"the norm is scaled by one V > 0, but {neuron!r} {found}; give the norm's threshold yourself")
    return values[0]

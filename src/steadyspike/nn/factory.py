"""How a network gets its neurons: a class or callable is called, a `NeuronSpec` is built for its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

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


def build_neuron(neuron: NeuronLike, site: Site) -> nn.Module:
    """A new neuron layer for ``site``: ``neuron.at(site)`` if it has that, else ``neuron()`` (e.g. ``ss.LIF``)."""
    layer = neuron.at(site) if isinstance(neuron, Placeable) else neuron()
    if not isinstance(layer, nn.Module):
        raise TypeError(f"the neuron factory {neuron!r} returned {type(layer).__name__}, not a module")
    return layer

"""How a network gets its neurons: a class or callable is called, a `NeuronSpec` is built for its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
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


@runtime_checkable
class Adjustable(Protocol):
    """Something that gives the same neuron with another threshold at the start."""

    def with_threshold(self, threshold: float) -> NeuronLike: ...


def with_threshold(neuron: NeuronLike, threshold: float) -> NeuronLike:
    """``neuron`` with another V at the start, or a ValueError if it cannot be told one."""
    if isinstance(neuron, Adjustable):
        return neuron.with_threshold(threshold)
    if not isinstance(neuron, Placeable) and "threshold" in inspect.signature(neuron).parameters:
        return partial(neuron, threshold=threshold)  # type: ignore[call-arg]
    raise ValueError(
        f"a layer of this network starts with the threshold {threshold:g}, and {neuron!r} takes no threshold; pass a "
        "neuron by name, a class or a functools.partial of one (ss.LIF), or give the network attn_v_init=None"
    )


def neuron_for(neuron: NeuronLike, site: Site, threshold: float | None = None) -> nn.Module:
    """A new neuron layer for ``site``: ``neuron.at(site)`` if it has that, else ``neuron()`` (e.g. ``ss.LIF``).

    threshold: V at the start, if not the neuron's own.
    """
    if threshold is not None:
        neuron = with_threshold(neuron, threshold)
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

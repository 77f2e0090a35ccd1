"""Builds the neuron layers of a network, from a class, a callable or a `NeuronSpec`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn


class Site(NamedTuple):
    """The position of a neuron layer in a network: its channels and, if known, its spatial size and time steps."""

    channels: int
    size: tuple[int, ...] | None = None
    timesteps: int | None = None


@runtime_checkable
class Placeable(Protocol):
    """An object that builds a neuron layer for a given site (per-channel constants need its channels, for example)."""

    def at(self, site: Site) -> nn.Module: ...


NeuronLike = Placeable | Callable[[], nn.Module]


@runtime_checkable
class Adjustable(Protocol):
    """An object that can return a copy of itself with another starting threshold."""

    def with_threshold(self, threshold: float) -> NeuronLike: ...


def with_threshold(neuron: NeuronLike, threshold: float) -> NeuronLike:
    """Returns ``neuron`` with another starting V; raises ValueError if the neuron takes no threshold."""
    if isinstance(neuron, Adjustable):
        return neuron.with_threshold(threshold)
    if not isinstance(neuron, Placeable) and "threshold" in inspect.signature(neuron).parameters:
        return partial(neuron, threshold=threshold)  # type: ignore[call-arg]
    raise ValueError(
        f"a layer of this network starts with the threshold {threshold:g}, and {neuron!r} takes no threshold; pass a "
        "neuron by name, a class or a functools.partial of one (ss.LIF), or give the network attn_v_init=None"
    )


def neuron_for(neuron: NeuronLike, site: Site, threshold: float | None = None) -> nn.Module:
    """A new neuron layer for ``site``: ``neuron.at(site)`` if it has ``at``, else ``neuron()`` (e.g. ``ss.LIF``).

    threshold: the starting V; None: the neuron's default
    """
    if threshold is not None:
        neuron = with_threshold(neuron, threshold)
    layer = neuron.at(site) if isinstance(neuron, Placeable) else neuron()
    if not isinstance(layer, nn.Module):
        raise TypeError(f"the neuron factory {neuron!r} returned {type(layer).__name__}, not a module")
    return layer


def starting_threshold(neuron: NeuronLike, site: Site) -> float:
    """Returns the starting V of a layer at ``site``, for norms that are scaled by the threshold."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        v = getattr(neuron_for(neuron, site), "threshold", None)
    values = v.detach().flatten().tolist() if isinstance(v, torch.Tensor) else []
    if len(set(values)) != 1 or not values[0] > 0:
        problem = f"has the thresholds {values}" if values else "has no attribute threshold"
        raise ValueError(
            f"the norm is scaled by one V > 0, but {neuron!r} {problem}; give the norm's threshold yourself"
        )
    return values[0]

"""Counts what a method stores in addition to a plain LIF network with batch norm (supplement, "Parameter overhead").

The plain network has fixed thresholds and leaks, U[0] = 0, and norms with one weight, bias, running mean and variance
per channel. Two numbers are counted: trained parameters, and statistics (running means and variances) for inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from steadyspike.nn.constants import Constants
from steadyspike.nn.factory import NeuronLike, Site, neuron_for
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.make import NormLike, make_norm


class Extra(NamedTuple):
    """Numbers of trained parameters and statistics in addition to the plain network; negative if there are fewer."""

    parameters: int
    statistics: int

    def plus(self, other: Extra) -> Extra:
        return Extra(self.parameters + other.parameters, self.statistics + other.statistics)


def stored(module: nn.Module, counted: set[nn.Parameter] | None = None) -> Extra:
    """Counts the trained parameters and floating-point statistics of a module; fixed constants are not counted.

    counted: parameters to skip, because another layer that shares them was counted; this module's parameters are added
    to it
    """
    counted = set() if counted is None else counted
    fresh = [p for p in module.parameters() if p.requires_grad and p not in counted]
    counted.update(fresh)
    parameters = sum(p.numel() for p in fresh)
    saved = module.state_dict()
    constants = {id(b) for m in module.modules() if isinstance(m, Constants) for b in m.fixed_constants()}
    buffers = [b for name, b in module.named_buffers() if name in saved and id(b) not in constants]
    statistics = sum(b.numel() for b in buffers if b.is_floating_point())
    return Extra(parameters, statistics)


def layer_overhead(module: nn.Module, counted: set[nn.Parameter] | None = None) -> Extra:
    """Returns the overhead of one neuron layer or norm; ``counted`` is as in `stored`."""
    extra = stored(module, counted)
    if isinstance(module, TimeNorm):
        return extra.plus(Extra(-2 * module.channels, -2 * module.channels))
    return extra


def overhead(model: nn.Module) -> dict[str, Extra]:
    """Returns the overhead of every neuron layer and norm of a model, by name; ``total(overhead(model))`` is the sum.

    A parameter that layers share (tied thresholds) is counted only for the first of them.
    """
    extras: dict[str, Extra] = {}
    counted: set[nn.Parameter] = set()
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue  # MPBN's norm is part of its neuron
        if isinstance(module, (Neuron, TimeNorm)):
            extras[name] = layer_overhead(module, counted)
            inside.append(f"{name}." if name else "")
    return extras


def total(extras: dict[str, Extra] | Sequence[Extra]) -> Extra:
    """Returns the sum of several overheads."""
    result = Extra(0, 0)
    for extra in extras.values() if isinstance(extras, dict) else extras:
        result = result.plus(extra)
    return result


def method_overhead(norm: NormLike, neuron: NeuronLike, sites: Sequence[Site]) -> Extra:
    """The overhead of a norm and a neuron at every position of a network; it builds the layers and counts them."""
    extras = []
    for site in sites:
        extras.append(layer_overhead(neuron_for(neuron, site)))
        if norm != "none":
            extras.append(layer_overhead(make_norm(norm, site.channels, timesteps=site.timesteps, threshold=1.0)))
    return total(extras)


def growth(norm: NormLike, neuron: NeuronLike) -> str:
    """How a method's trained parameters grow with layers L, time steps T, channels C, neurons N, such as "O(LT)"."""

    def at(channels: int, size: int, steps: int) -> int:
        return method_overhead(norm, neuron, [Site(channels, (size, size), steps)]).parameters

    base = at(4, 4, 4)
    if at(4, 8, 4) != base:
        return "O(N)"
    letters = ("T" if at(4, 4, 8) != base else "") + ("C" if at(8, 4, 4) != base else "")
    return f"O(L{letters})" if base or letters else "0"

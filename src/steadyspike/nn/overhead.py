"""What a method stores beyond a plain LIF network with batch norm (the paper's supplement, "Parameter overhead").

The plain network has fixed thresholds and leaks, U[0] = 0, and per norm one weight, bias, running mean and variance per
channel. Counted are numbers: trained parameters, and statistics (running means and variances) that inference needs.
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
    """Trained parameters and stored statistics beyond the plain network; negative where there are fewer."""

    parameters: int
    statistics: int

    def plus(self, other: Extra) -> Extra:
        return Extra(self.parameters + other.parameters, self.statistics + other.statistics)


def stored(module: nn.Module, counted: set[nn.Parameter] | None = None) -> Extra:
    """Trained parameters and floating-point statistics of a module and all in it; fixed constants are neither.

    counted: parameters that count no more, since another layer shares them; those of this module are added.
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
    """The overhead of one neuron layer or norm; ``counted`` as in `stored`."""
    extra = stored(module, counted)
    if isinstance(module, TimeNorm):
        return extra.plus(Extra(-2 * module.channels, -2 * module.channels))
    return extra


def overhead(model: nn.Module) -> dict[str, Extra]:
    """Overhead of every neuron layer and norm of a model by name; ``total(overhead(model))`` sums it.

    A parameter that layers share (tied thresholds) counts in the first of them.
    """
    found: dict[str, Extra] = {}
    counted: set[nn.Parameter] = set()
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue  # MPBN's norm is part of its neuron
        if isinstance(module, (Neuron, TimeNorm)):
            found[name] = layer_overhead(module, counted)
            inside.append(f"{name}." if name else "")
    return found


def total(extras: dict[str, Extra] | Sequence[Extra]) -> Extra:
    """The sum."""
    result = Extra(0, 0)
    for extra in extras.values() if isinstance(extras, dict) else extras:
        result = result.plus(extra)
    return result


def method_overhead(norm: NormLike, neuron: NeuronLike, sites: Sequence[Site]) -> Extra:
    """Overhead of a norm and a neuron at every site of a network, from layers that are really built."""
    extras = []
    for site in sites:
        extras.append(layer_overhead(neuron_for(neuron, site)))
        if norm != "none":
            extras.append(layer_overhead(make_norm(norm, site.channels, timesteps=site.timesteps, threshold=1.0)))
    return total(extras)


def growth(norm: NormLike, neuron: NeuronLike) -> str:
    """What the trained parameters of a method grow with: layers L, time steps T, channels C, neurons N, as "O(LT)"."""

    def at(channels: int, size: int, steps: int) -> int:
        return method_overhead(norm, neuron, [Site(channels, (size, size), steps)]).parameters

    base = at(4, 4, 4)
    if at(4, 8, 4) != base:
        return "O(N)"
    letters = ("T" if at(4, 4, 8) != base else "") + ("C" if at(8, 4, 4) != base else "")
    return f"O(L{letters})" if base or letters else "0"

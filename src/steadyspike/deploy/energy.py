"""Operations and energy of a folded network on given data.

A synapse that reads spikes adds one weight per spike and output it reaches (an accumulate, AC); one that reads real
numbers multiplies and adds (a MAC). ACs are counted exactly: a spike at the border of a padded convolution reaches
fewer outputs. Papers estimate them as firing rate times the dense operations; both numbers are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steadyspike.deploy.graph import Node
from steadyspike.deploy.kinds import COUNTS, POOLED, REAL, SPIKES, value_kinds
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.ops import CONVS, per_sample

# Picojoule per MAC and per AC. 45 nm: Horowitz, ISSCC 2014 (fp32: multiply 3.7, add 0.9), as the paper counts; the
# other two are the presets of SpikingJelly's energy profiler.
TABLES = {"45nm-fp32": (4.6, 0.9), "45nm-fp16": (1.5, 0.4), "45nm-int8": (0.23, 0.03)}


def energy_mj(macs: float, acs: float, table: str = "45nm-fp32") -> float:
    """Millijoule of so many multiply-accumulates and accumulates."""
    if table not in TABLES:
        raise ValueError(f"unknown energy table {table!r}; known: {', '.join(TABLES)}")
    mac, ac = TABLES[table]
    return (mac * macs + ac * acs) * 1e-9


def show_energy(mj: float) -> str:
    """A number of millijoule with a unit that suits it."""
    return f"{mj:.3f} mJ" if mj >= 0.1 else f"{mj * 1e3:.3f} uJ"


@dataclass
class LayerCount:
    """Operations of one synapse (or identity edge, or neuron layer), summed over the samples seen.

    acs, macs: exact; estimate: firing rate times the dense operations, as papers count ACs; dense: operations of the
    dense layer; rates: mean input per time step (the firing rate, where the input is spikes).
    """

    name: str
    kind: str
    acs: float = 0.0
    macs: float = 0.0
    estimate: float = 0.0
    dense: float = 0.0
    updates: float = 0.0
    rates: list[float] = field(default_factory=list)


@dataclass
class EnergyReport:
    """Operations per sample, by layer, and the energy of a table of costs."""

    layers: list[LayerCount]
    firing: dict[str, list[float]]
    samples: int
    timesteps: int

    def total(self, what: str) -> float:
        """Per sample: ``acs``, ``macs``, ``estimate``, ``dense`` or ``updates``."""
        return sum(getattr(layer, what) for layer in self.layers) / self.samples

    def energy(self, table: str = "45nm-fp32", *, estimate: bool = False, neurons: bool = False) -> float:
        """Millijoule per sample. estimate: ACs as papers count them; neurons: one MAC per neuron update on top."""
        macs = self.total("macs") + (self.total("updates") if neurons else 0.0)
        return energy_mj(macs, self.total("estimate" if estimate else "acs"), table)

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [f"{'layer':<{width}} {'input':>7} {'rate':>7} {'AC':>12} {'rate x dense':>13} {'MAC':>12}"]
        for layer in self.layers:
            if layer.kind == "neuron":
                continue
            rate = "" if layer.kind == REAL else f"{sum(layer.rates) / max(1, len(layer.rates)):7.2%}"
            acs, estimate, macs = (value / self.samples for value in (layer.acs, layer.estimate, layer.macs))
            lines.append(
                f"{layer.name:<{width}} {layer.kind:>7} {rate:>7} {acs:12,.0f} {estimate:13,.0f} {macs:12,.0f}"
            )
        acs, estimate, macs = (self.total(what) for what in ("acs", "estimate", "macs"))
        lines.append(f"{'total per sample':<{width}} {'':>7} {'':>7} {acs:12,.0f} {estimate:13,.0f} {macs:12,.0f}")
        lines += [f"energy, {table}: {show_energy(self.energy(table))}" for table in TABLES]
        return "\n".join(lines)


def dense_operations(node: Node, shape: tuple[int, ...]) -> int:
    """Multiply-accumulates of one sample at one step; ``shape``: of the synapse's input."""
    weight = node.tensors["weight"]
    if node.op == "linear":
        return math.prod(node.shape) * weight.shape[1]
    return math.prod(node.shape) * math.prod(weight.shape[1:])


def reached(node: Node, x: Tensor, timed: bool) -> float:
    """Sum over the input's values of the number of outputs each one reaches: exact synaptic operations of spikes."""
    weight = node.tensors["weight"]
    if node.op == "linear":
        return float(x.double().sum()) * weight.shape[0]
    o, groups = node.options, node.options["groups"]
    ones = torch.ones(groups, *weight.shape[1:], dtype=x.dtype, device=x.device)

    def count(folded: Tensor) -> Tensor:
        return CONVS[weight.ndim](folded, ones, None, o["stride"], o["padding"], o["dilation"], groups)

    return float(per_sample(count, x, timed).double().sum()) * (weight.shape[0] // groups)


@torch.no_grad()
def count_operations(
    network: FoldedNetwork, batches: Iterable[Tensor], *, pool_as_synapse: bool = True, stem_every_step: bool = False
) -> EnergyReport:
    """Counts the operations of ``network`` on batches as it takes them.

    pool_as_synapse: an average of spikes is a sum of spikes with a smaller weight, so what reads it accumulates (as
        papers count); False: every synapse behind an average multiplies (a strict counter).
    stem_every_step: count the layers before the first neuron at every step, although a static image needs them once.
    """
    graph = network.graph
    kinds = value_kinds(graph)
    spiking = {SPIKES, COUNTS} | ({POOLED} if pool_as_synapse else set())
    layers: dict[str, LayerCount] = {}
    sums: dict[str, list[Tensor]] = {}
    samples = steps = 0

    def see_input(node: Node, value: Tensor, source: str, entry: LayerCount) -> None:
        repeats = network.graph.timesteps if stem_every_step and not node.timed else 1
        lead = value.shape[0] * (value.shape[1] if node.timed else 1)
        dense = dense_operations(node, graph[source].shape) * lead * repeats
        entry.dense += dense
        if kinds[source] in spiking:
            size = _pool_size(network, source)
            entry.acs += reached(node, value, node.timed) * size
            entry.estimate += float(value.double().mean()) * dense * size
            entry.rates = value.double().flatten(1).mean(1).tolist() if node.timed else [float(value.double().mean())]
        else:
            entry.macs += dense

    values: dict[str, Tensor] = {}

    def watch(node: Node, value: Tensor) -> None:
        nonlocal steps
        values[node.name] = value
        if node.op in ("conv", "linear"):
            entry = layers.setdefault(node.name, LayerCount(node.name, kinds[node.inputs[0]]))
            see_input(node, values[node.inputs[0]], node.inputs[0], entry)
        elif node.op == "sum":
            for source in node.inputs:
                if kinds[source] in (SPIKES, COUNTS) and kinds[node.name] == REAL:
                    key = f"{node.name} <- {source}"
                    entry = layers.setdefault(key, LayerCount(key, kinds[source]))
                    spikes = float(values[source].double().sum())
                    entry.acs, entry.estimate = entry.acs + spikes, entry.estimate + spikes
                    entry.rates = values[source].double().flatten(1).mean(1).tolist()
        elif node.op == "lif":
            entry = layers.setdefault(f"{node.name} (neurons)", LayerCount(f"{node.name} (neurons)", "neuron"))
            entry.updates += value.numel()
            sums.setdefault(node.name, []).append(value.double().flatten(1).mean(1))
            steps = value.shape[0]

    for x in batches:
        values.clear()
        network.run(x, None, watch)
        samples += x.shape[1] if graph.input.timed else x.shape[0]
    if not samples:
        raise ValueError("there is no data to count operations on")
    firing = {name: torch.stack(means).mean(0).tolist() for name, means in sums.items()}
    return EnergyReport(list(layers.values()), firing, samples, steps)


def _pool_size(network: FoldedNetwork, source: str) -> float:
    """How many values an average on the way from the spikes joined: the accumulates hidden in one averaged value."""
    size, node = 1.0, network.graph[source]
    while node.op not in ("lif", "input"):
        before = network.graph[node.inputs[0]]
        if node.op in ("avg_pool", "adaptive_avg_pool", "mean"):
            size *= math.prod(before.shape) / math.prod(node.shape)
        elif node.op not in ("reshape", "permute", "slice", "max_pool", "concat", "repeat", "time_mean"):
            break
        node = before
    return size


__all__ = ["TABLES", "EnergyReport", "LayerCount", "count_operations", "dense_operations", "energy_mj", "reached"]

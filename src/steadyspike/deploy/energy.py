"""Operations and energy of a folded network on given data.

A synapse that reads spikes adds one weight per spike and output it reaches (an accumulate, AC). A synapse that reads
real numbers multiplies and adds (a MAC). ACs are counted exactly: a spike at the border of a padded convolution reaches
fewer outputs. Papers estimate ACs as firing rate times the dense operations; both numbers are given. MACs are dense:
they include the zeros of a padded border.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from steadyspike.deploy.graph import Node
from steadyspike.deploy.kinds import COUNTS, POOLED, REAL, SPIKES, value_kinds
from steadyspike.deploy.network import FoldedNetwork, refuse_unfolded
from steadyspike.deploy.ops import CONVS, SPECS, conv_transpose, initial_potential, lif, per_sample
from steadyspike.deploy.sums import summed
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.spikes.note import known_spikes

# Picojoule per MAC and per AC. 45 nm: Horowitz, ISSCC 2014 (fp32: multiply 3.7, add 0.9), as in the paper. The other
# two are the presets of SpikingJelly's energy profiler.
TABLES = {"45nm-fp32": (4.6, 0.9), "45nm-fp16": (1.5, 0.4), "45nm-int8": (0.23, 0.03)}


def energy_mj(macs: float, acs: float, table: str = "45nm-fp32") -> float:
    """Returns the millijoule of this many multiply-accumulates and accumulates."""
    if table not in TABLES:
        raise ValueError(f"unknown energy table {table!r}; known: {', '.join(TABLES)}")
    mac, ac = TABLES[table]
    return (mac * macs + ac * acs) * 1e-9


def show_energy(mj: float) -> str:
    """Formats a number of millijoule in a suitable unit."""
    return f"{mj:.3f} mJ" if mj >= 0.1 else f"{mj * 1e3:.3f} uJ"


@dataclass
class LayerCount:
    """Operations of one synapse (or identity edge, or neuron layer), summed over the samples seen.

    acs, macs: exact
    estimate: firing rate times the dense operations, as papers count ACs
    dense: operations of the dense layer
    rates: mean input per time step (the firing rate, if the input is spikes)
    """

    name: str
    kind: str
    acs: float = 0.0
    macs: float = 0.0
    estimate: float = 0.0
    dense: float = 0.0
    updates: float = 0.0
    rates: list[float] = field(default_factory=list)
    inputs: int = 0

    def see_rates(self, value: Tensor, samples: int, timed: bool) -> None:
        """Adds the mean input of a batch to ``rates``, weighted by its number of samples."""
        self.rates = _mean_rates(self.rates, self.inputs, _means(value, timed), samples)
        self.inputs += samples


def _means(value: Tensor, timed: bool) -> list[float]:
    """Returns the mean of every time step of a value; one mean for a value without time."""
    sums = step_sums(value, timed)
    return [total / (value.numel() / len(sums)) for total in sums]


def _mean_rates(before: list[float], seen: int, new: list[float], samples: int) -> list[float]:
    """Merges means per time step over ``seen`` samples with ``new`` means over ``samples`` more; T may differ."""
    new, old = (rates + [0.0] * (max(len(new), len(before)) - len(rates)) for rates in (new, before))
    return [(a * seen + b * samples) / (seen + samples) for a, b in zip(old, new)]


@dataclass
class EnergyReport:
    """Operations per sample, by layer, and the energy of a table of costs."""

    layers: list[LayerCount]
    firing: dict[str, list[float]]
    samples: int
    timesteps: int

    def total(self, what: str) -> float:
        """Returns a number per sample: ``acs``, ``macs``, ``estimate``, ``dense`` or ``updates``."""
        return sum(getattr(layer, what) for layer in self.layers) / self.samples

    def energy(self, table: str = "45nm-fp32", *, estimate: bool = False, neurons: bool = False) -> float:
        """Returns the millijoule per sample.

        estimate: use ACs as papers count them
        neurons: add one MAC per neuron update
        """
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
    """Returns the multiply-accumulates of one sample at one step; ``shape`` is that of the synapse's input."""
    weight = node.tensors["weight"]
    if node.op == "linear":
        return math.prod(node.shape) * weight.shape[1]
    # every input value reaches a kernel of outputs; those outside of the border are counted too
    if node.op == "conv_transpose":
        return math.prod(shape) * math.prod(weight.shape[1:])
    return math.prod(node.shape) * math.prod(weight.shape[1:])


def reached(node: Node, x: Tensor, timed: bool) -> float:
    """Sum over the input's values of the number of outputs each one reaches: exact synaptic operations of spikes."""
    weight = node.tensors["weight"]
    if node.op == "linear":
        return sum(step_sums(x, timed)) * weight.shape[0]
    o, groups = node.options, node.options["groups"]
    ones = torch.ones(groups, *weight.shape[1:], dtype=x.dtype, device=x.device)

    if node.op == "conv_transpose":
        one = replace(node, tensors={"weight": torch.ones_like(weight[:, :1], dtype=x.dtype)})
        return float(conv_transpose(replace(one, timed=timed), x).double().sum()) * weight.shape[1]

    def count(folded: Tensor) -> Tensor:
        return CONVS[weight.ndim](folded, ones, None, o["stride"], o["padding"], o["dilation"], groups)

    return float(per_sample(count, x, timed).double().sum()) * (weight.shape[0] // groups)


@torch.no_grad()
def count_operations(
    network: FoldedNetwork, batches: Iterable[Tensor], *, pool_as_synapse: bool = True, stem_every_step: bool = False
) -> EnergyReport:
    """Counts the operations of ``network`` on batches of its inputs.

    pool_as_synapse: an average of spikes is a sum of spikes with a smaller weight, so the layer that reads it
    accumulates (as papers count); if False, every synapse that reads an average multiplies (a strict counter)
    stem_every_step: count the layers before the first neuron at every step, although a static image needs them once
    """
    refuse_unfolded(network)
    graph = network.graph
    kinds = value_kinds(graph)
    spiking = {SPIKES, COUNTS} | ({POOLED} if pool_as_synapse else set())
    layers: dict[str, LayerCount] = {}
    firing: dict[str, list[float]] = {}
    samples = steps = batch = 0

    def mean(value: Tensor, timed: bool) -> float:
        return sum(step_sums(value, timed)) / value.numel()

    def see_input(node: Node, value: Tensor, source: str, entry: LayerCount) -> None:
        repeats = network.graph.timesteps if stem_every_step and not node.timed else 1
        lead = value.shape[0] * (value.shape[1] if node.timed else 1)
        dense = dense_operations(node, graph[source].shape) * lead * repeats
        entry.dense += dense
        if kinds[source] in spiking:
            entry.acs += reached(node, joined[source], node.timed)
            entry.estimate += mean(joined[source], node.timed) * dense
            entry.see_rates(value, batch, node.timed)
        else:
            entry.macs += dense

    def see_product(node: Node, entry: LayerCount) -> None:
        """Counts a product of two values (attention): every spike of one adds a row or column of the other."""
        a, b = node.inputs
        rows, columns = graph[a].shape[-2], graph[b].shape[-1]
        dense = values[node.name].numel() * graph[a].shape[-1]
        entry.dense += dense
        for source, reaches in ((a, columns), (b, rows)):
            if kinds[source] in spiking:
                entry.acs += sum(step_sums(joined[source], node.timed)) * reaches
                entry.estimate += mean(joined[source], node.timed) * dense
                entry.see_rates(values[source], batch, node.timed)
                return
        entry.macs += dense

    values: dict[str, Tensor] = {}
    joined: dict[str, Tensor] = {}  # the same with sums instead of averages of spikes

    def watch(node: Node, value: Tensor) -> None:
        nonlocal steps
        values[node.name] = value
        if kinds[node.name] == POOLED:
            joined[node.name] = summed(node, graph, [joined[name] for name in node.inputs], len(value))
        elif kinds[node.name] != REAL:
            joined[node.name] = value
        if node.op in ("conv", "conv_transpose", "linear"):
            entry = layers.setdefault(node.name, LayerCount(node.name, kinds[node.inputs[0]]))
            see_input(node, values[node.inputs[0]], node.inputs[0], entry)
        elif node.op == "matmul":
            entry = layers.setdefault(node.name, LayerCount(node.name, kinds[node.name]))
            see_product(node, entry)
        elif node.op == "sum":
            for source in node.inputs:
                if kinds[source] in (SPIKES, COUNTS) and kinds[node.name] == REAL:
                    key = f"{node.name} <- {source}"
                    entry = layers.setdefault(key, LayerCount(key, kinds[source]))
                    spikes = sum(step_sums(values[source], graph[source].timed))
                    entry.acs, entry.estimate = entry.acs + spikes, entry.estimate + spikes
                    entry.see_rates(values[source], batch, graph[source].timed)
        elif node.op == "lif":
            entry = layers.setdefault(f"{node.name} (neurons)", LayerCount(f"{node.name} (neurons)", "neuron"))
            entry.updates += value.numel()
            firing[node.name] = _mean_rates(firing.get(node.name, []), samples, _means(value, True), batch)
            steps = max(steps, value.shape[0])

    for x in batches:
        values.clear()
        joined.clear()
        batch = x.shape[1] if graph.input.timed else x.shape[0]
        network.run(x, None, watch, scanned)
        samples += batch
    if not samples:
        raise ValueError("there is no data to count operations on")
    return EnergyReport(list(layers.values()), firing, samples, steps)


__all__ = ["TABLES", "EnergyReport", "LayerCount", "count_operations", "dense_operations", "energy_mj", "reached"]


def scanned(node: Node, x: Tensor) -> Tensor:
    """Computes `ops.lif` of a layer that emits spikes by `lif_scan`, equal to the last bit.

    Any other layer by `ops.lif`.
    """
    o = node.options
    if o["emit"] != "spikes":
        return lif(node, x)
    start = node.tensors["start"]
    start = start if start.ndim == 1 else initial_potential(node, x)
    spec = SPECS[o["reset"], o["strict"], o["decay_input"]]
    return lif_scan(x, start, node.tensors["threshold"], node.tensors["leak"], spec).out


def step_sums(value: Tensor, timed: bool) -> list[float]:
    """Returns the sum of every time step; one sum for a value without time.

    If a note has the spikes as bits, these are counted.
    """
    spikes = known_spikes(value) if timed else None
    if spikes is not None and spikes.level.numel() == 1 and spikes.level.item() == 1:
        return [float(count) for count in spikes.counts.tolist()]
    return (value if timed else value[None]).double().flatten(1).sum(1).tolist()

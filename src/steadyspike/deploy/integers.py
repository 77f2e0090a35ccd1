"""Integer networks: int8 weights, integer thresholds, potentials and decays, and a simulator that computes with them.

Every current has a scale s: the integer current is s times the real one. Synapses whose outputs are added share their
scale. A neuron's threshold and initial potential get the scale of the current that the neuron reads:

    M[t] = (keep U[t-1] + gain I[t]) / 4096, rounded toward zero     keep = (1 - a) 4096, gain = a 4096
    S[t] = 1 where M[t] >= V
    U[t] = M[t] - V S[t]  (soft)  or  M[t] (1 - S[t])  (hard)

After `fold`, V is already in the weights that read a neuron, so the scales of different layers do not depend on each
other. The first layer reads real numbers. It is computed in double precision, and its current is rounded.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel
from steadyspike.deploy.errors import CannotFold, missing_package
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.kinds import REAL, value_kinds
from steadyspike.deploy.network import FoldedNetwork, Watch, per_step, refuse_unfolded
from steadyspike.deploy.ops import OPS
from steadyspike.deploy.recurrent import refuse_recurrent
from steadyspike.deploy.sums import adaptive_windows
from steadyspike.deploy.synapses import compose_linear
from steadyspike.deploy.written import write_file

DECAY = 4096
# Operations that return real numbers and have an integer form: synapses, their sums, and operations that move values.
WITH_INTEGERS = {
    "conv", "linear", "sum", "lif", "avg_pool", "adaptive_avg_pool", "mean", "time_mean", "time_sum", "max_pool",
    "reshape", "permute", "slice", "concat", "repeat", "upsample",
}  # fmt: skip
_SUMMED = {"avg_pool", "adaptive_avg_pool", "mean", "time_mean"}


@dataclass(frozen=True)
class IntegerNode:
    """A node with its integer constants: weights, edges and biases in units of 1/scale."""

    node: Node
    scale: float
    tensors: dict[str, Tensor]


def current_groups(graph: Graph, kinds: dict[str, str]) -> dict[str, str]:
    """Returns the name of the group of every node with a real value; values that are added share one scale."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for node in graph:
        if kinds[node.name] != REAL:
            continue
        parent[node.name] = node.name
        if node.op not in ("conv", "linear"):  # the potential of a readout has the unit of its current
            for source in node.inputs:
                if kinds[source] == REAL:
                    parent[root(source)] = root(node.name)
    return {name: root(name) for name in parent}


class IntegerNetwork:
    """A folded network in integers. ``run`` takes the same input as the folded network and returns real outputs.

    bits: of the weights (symmetric, one scale per group of currents)
    """

    def __init__(self, network: FoldedNetwork, bits: int = 8) -> None:
        refuse_unfolded(network)
        if not 2 <= bits <= 16:
            raise ValueError(f"weights take 2 to 16 bits, got {bits}")
        refuse_recurrent(network.graph, "it cannot be written in integers here")
        self.network, self.bits = FoldedNetwork(compose_linear(network.graph)), bits
        self.graph = self.network.graph
        self.kinds = value_kinds(self.graph)
        self.groups = current_groups(self.graph, self.kinds)
        self.first = self._first_layers()
        self._refuse()
        self.scales = self._scales()
        self.nodes = {node.name: self._integers(node) for node in self.graph}

    def _first_layers(self) -> set[str]:
        """Returns nodes before any neuron, which are computed in floating point."""
        names: set[str] = set()
        for node in self.graph:
            if node.op == "input" or (node.op != "lif" and node.inputs and all(i in names for i in node.inputs)):
                names.add(node.name)
        return names

    def _refuse(self) -> None:
        for node in self.graph:
            if node.name in self.first:
                continue
            if any(per_step(node, t) for t in node.tensors.values()):
                raise CannotFold(
                    f"{node.name}: constants that differ from step to step cannot be written in integers here"
                )
            if node.op in ("conv", "linear") and self.kinds[node.inputs[0]] == REAL:
                raise CannotFold(
                    f"{node.name} reads real numbers ({node.inputs[0]}), so its product would need a second rounding; "
                    "integer hardware needs spikes there"
                )
            if node.op not in WITH_INTEGERS and self.kinds[node.name] == REAL:
                raise CannotFold(f"{node.name}: {node.op} of real numbers cannot be written in integers here")
            if node.op == "time_mean" and self.kinds[node.name] != REAL:
                raise CannotFold(f"{node.name}: the spikes are averaged over time before a layer; average its output")
            real = self._real_inputs(node)
            if node.op == "sum" and any(f"edge{i}" in node.tensors for i in real):
                raise CannotFold(f"{node.name}: a constant times a real current cannot be written in integers here")
            unweighted = self.kinds[node.name] == REAL and node.op not in ("conv", "linear", "sum")
            if (node.op == "lif" or unweighted) and len(real) < len(node.inputs):
                raise CannotFold(f"{node.name} reads spikes without a weight; put a layer with weights before it")

    def _real_inputs(self, node: Node) -> list[int]:
        return [i for i, source in enumerate(node.inputs) if self.kinds[source] == REAL]

    def _weights(self, node: Node) -> dict[str, Tensor]:
        """Returns the factors of spikes, which must fit in the weights' bits; divided by k if sums replace averages."""
        if node.op in ("conv", "linear"):
            return {"weight": node.tensors["weight"].double() / averaged(self.graph, node.inputs[0])}
        if node.op != "sum":
            return {}
        one = torch.ones([1] * len(node.shape), dtype=torch.float64)
        return {
            f"edge{i}": node.tensors.get(f"edge{i}", one).double() / averaged(self.graph, source)
            for i, source in enumerate(node.inputs)
            if self.kinds[source] != REAL
        }

    def _scales(self) -> dict[str, float]:
        top = 2 ** (self.bits - 1) - 1
        largest: dict[str, float] = {}
        for node in self.graph:
            if node.name in self.groups and node.name not in self.first:
                group = self.groups[node.name]
                for weight in self._weights(node).values():
                    largest[group] = max(largest.get(group, 0.0), float(weight.abs().max()))
        scales = {group: top / value if value > 0 else 1.0 for group, value in largest.items()}
        for node in self.graph.neurons():  # a current of the first layer only: with a resolution of 16 bits of V
            group = self.groups[node.inputs[0]]
            if group not in scales:
                scales[group] = 2**14 / float(node.tensors["threshold"].abs().max())
        return scales

    def scale_of(self, name: str) -> float:
        """Returns the integer units per 1 of a current."""
        return self.scales.get(self.groups[name], 1.0)

    def _integers(self, node: Node) -> IntegerNode:
        if node.name in self.first or node.op == "input":
            return IntegerNode(node, 1.0, {})
        if node.op == "lif":
            scale = self.scale_of(node.inputs[0])
            leak = node.tensors["leak"].double()
            keep = ((1 - leak) * DECAY).round()
            gain = (leak * DECAY).round() if node.options["decay_input"] else torch.full_like(keep, DECAY)
            tensors = {"threshold": (node.tensors["threshold"].double() * scale).round(), "keep": keep, "gain": gain}
            tensors["start"] = (node.tensors["start"].double() * scale).round()
            return IntegerNode(node, scale, tensors)
        if self.kinds[node.name] != REAL:
            return IntegerNode(node, 1.0, {})
        scale = self.scale_of(node.name)
        constants = {**node.tensors, **self._weights(node)}
        tensors = {what: (t.double() * scale).round() for what, t in constants.items()}
        return IntegerNode(node, scale, tensors)

    def save(self, path: str | os.PathLike[str], extra: dict[str, Any] | None = None) -> Path:
        """Writes all integer constants to a safetensors file: ``<layer>|<what>`` in int32, scales in the metadata."""
        missing_package("safetensors", "export")
        from safetensors.torch import save as to_bytes

        tensors = {
            f"{name}|{what}": t.to(torch.int32).contiguous()
            for name, integer in self.nodes.items()
            for what, t in integer.tensors.items()
        }
        scales = {name: integer.scale for name, integer in self.nodes.items() if integer.tensors}
        content = {"format": "steadyspike integers 1", "bits": self.bits, "decay": DECAY, "scales": scales}
        metadata = {"steadyspike": json.dumps({**content, "extra": extra or {}}, sort_keys=True)}
        return write_file(path, to_bytes(tensors, metadata))

    def __call__(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Calls `run`, as for any other network."""
        return self.run(x, timesteps)

    @torch.no_grad()
    def run(self, x: Tensor, timesteps: int | None = None, watch: Watch | None = None) -> Tensor:
        """Returns the output in real numbers; ``watch(node, value)`` gets spikes and integer currents (as float64)."""
        steps = self.network.check_input(x, timesteps)
        values: dict[str, Tensor] = {}
        for name in self.graph.nodes:
            node, integer = self.network.node(name), self.nodes[name]
            inputs = [values[i] if name in self.first else self._current(i, values[i]) for i in node.inputs]
            values[name] = self._value(node, integer, inputs, x, steps)
            if watch is not None:
                watch(node, values[name])
        out = self.graph.output
        real = self.kinds[out] == REAL and out not in self.first
        return (values[out] / self.scale_of(out) if real else values[out]).to(x.dtype)

    def _value(self, node: Node, integer: IntegerNode, inputs: list[Tensor], x: Tensor, steps: int) -> Tensor:
        if node.op == "input":
            return x.double()
        if node.op == "repeat":
            value = OPS["repeat"].compute(node, inputs[0], steps)
        # in double precision, so that the order of a sum does not change what it is rounded to
        elif node.name in self.first:
            return OPS[node.op].compute(
                replace(node, tensors={k: t.double() for k, t in node.tensors.items()}), *inputs
            )
        elif node.op == "lif":
            return self._neuron(integer, inputs[0])
        elif node.op in _SUMMED and self.kinds[node.name] != REAL:
            value = OPS[node.op].compute(node, inputs[0]) * ratio(self.graph, node)
            value = value.round()  # a sum of whole numbers, computed as an average times its size
        else:
            value = OPS[node.op].compute(replace(node, tensors={**node.tensors, **integer.tensors}), *inputs)
        return value

    def _current(self, source: str, value: Tensor) -> Tensor:
        """Returns a value as integers; values of the first layer are rounded when a later layer reads them."""
        return (value * self.scale_of(source)).round() if source in self.first else value

    def _neuron(self, integer: IntegerNode, current: Tensor) -> Tensor:
        o, axes = integer.node.options, current.ndim - 1
        v, keep, gain = (per_channel(integer.tensors[what], axes) for what in ("threshold", "keep", "gain"))
        start = integer.tensors["start"]
        u = (start if start.ndim > 1 else per_channel(start, axes)).expand(current.shape[1:])
        outs = []
        for i in current.unbind(0):
            m = torch.trunc((keep * u + gain * i) / DECAY)
            s = ((m > v) if o["strict"] else (m >= v)).double()
            u = m - v * s if o["reset"] == "soft" else m * (1 - s) if o["reset"] == "hard" else m
            outs.append(m if o["emit"] == "potential" else s)
        return torch.stack(outs)


def ratio(graph: Graph, node: Node) -> int:
    """Returns how many values an average combines."""
    if node.op == "avg_pool":
        uneven = node.options["ceil_mode"] or (any(node.options["padding"]) and not node.options["count_include_pad"])
        if uneven:
            raise CannotFold(f"{node.name}: windows of different sizes cannot be sums with one weight")
        return math.prod(node.options["kernel_size"])
    before = graph[node.inputs[0]].shape
    if node.op == "adaptive_avg_pool" and any(
        len(set(adaptive_windows(n, m))) > 1 for n, m in zip(before[-2:], node.shape[-2:])
    ):
        raise CannotFold(f"{node.name}: windows of different sizes cannot be sums with one weight")
    if node.op == "adaptive_avg_pool":
        return math.prod(adaptive_windows(n, m)[0] for n, m in zip(before[-2:], node.shape[-2:]))
    return math.prod(before) // math.prod(node.shape)


def averaged(graph: Graph, name: str) -> int:
    """Returns the product of the sizes of all averages between the last neuron and this value."""
    node = graph[name]
    if node.op in ("lif", "input", "conv", "linear"):
        return 1
    if node.op in ("multiply", "matmul"):
        return math.prod(averaged(graph, source) for source in node.inputs)
    sizes = {averaged(graph, source) for source in node.inputs}
    if len(sizes) > 1:
        raise CannotFold(
            f"{name} combines averages over {sorted(sizes)} values, for which there is no common integer weight"
        )
    return sizes.pop() * (ratio(graph, node) if node.op in _SUMMED else 1)

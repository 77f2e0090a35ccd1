"""Turns a folded network into a `Program`: which loops compute its nodes, and which nodes share one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Node
from steadyspike.deploy.network import FoldedNetwork, refuse_unfolded
from steadyspike.deploy.recurrent import refuse_recurrent
from steadyspike.deploy.standalone.constants import Constants, potential_limit
from steadyspike.deploy.standalone.program import (
    Adds,
    Array,
    Buffer,
    Edge,
    Layer,
    Operation,
    Program,
    Synapse,
    Value,
    grid_of,
    natural_index,
)
from steadyspike.deploy.standalone.rearrange import Rearrange
from steadyspike.deploy.standalone.synapse import synapse

_LINEAR_AFTER_TIME = ("conv", "linear", "affine", "sum", "reshape", "permute", "slice", "mean", "avg_pool", "time_mean")
Terms = list[Synapse | Edge]


class _Sum:
    """A sum that has no memory yet: its terms and its constant."""

    def __init__(self, channels: int, terms: Terms | None = None) -> None:
        self.terms: Terms = terms or []
        self.constant: Array = np.zeros((1, channels))


class _Lowering(Rearrange):
    """Lowers one graph, node by node; ``values`` has the stored value of each node."""

    def __init__(self, network: FoldedNetwork, integer: bool) -> None:
        super().__init__()
        refuse_recurrent(network.graph, "it cannot be written in C here")
        self.constants = Constants(network, integer)
        self.graph = self.constants.graph
        self.users = self.graph.consumers()
        self.integer = integer
        self.still: list[Operation] = []
        self.each_step: list[Operation] = []
        self.after_mean = self._after_time_mean()

    def _after_time_mean(self) -> set[str]:
        """Returns nodes after a mean over time: a linear operation of the mean is the mean of the operation's steps."""
        behind: set[str] = set()
        for node in self.graph:
            if node.op == "time_mean" or any(name in behind for name in node.inputs):
                if node.op not in _LINEAR_AFTER_TIME or not all(self.constants.is_real(i) for i in node.inputs):
                    raise CannotFold(
                        f"{node.name}: {node.op} after a mean over time needs all steps at once; average the output"
                    )
                behind.add(node.name)
        return behind

    def run(self, name: str, steps_limit: int | None, facts: dict[str, Any]) -> Program:
        for node in self.graph:
            self.node = node
            self.operations = self.each_step if node.timed or node.name in self.after_mean else self.still
            self._lower(node)
        output = self._output()
        source = self.graph.input
        return Program(
            name, self.integer, source.shape, source.timed, self.graph.timesteps, steps_limit, self.still,
            self.each_step, output, 1 / self.output_scale, facts,
        )  # fmt: skip

    def _lower(self, node: Node) -> None:
        handlers: dict[str, Callable[[Node], Value | None]] = {
            "input": self._input,
            "repeat": self._repeat,
            "time_mean": lambda node: self.value(node.inputs[0]),
            "conv": self._real,
            "linear": self._real,
            "affine": self._real,
            "relu": self._real,
            "sum": self._sum_node,
            "lif": self._neurons,
        }
        handler = handlers.get(node.op)
        value = handler(node) if handler is not None else self.rearranged(node)
        if value is not None:
            self.values[node.name] = value

    def _input(self, node: Node) -> Value:
        index = np.arange(int(np.prod(node.shape))).reshape(node.shape)
        return Value(Buffer(node.name, "input", grid_of(node.shape), -np.inf, np.inf), index)

    def _repeat(self, node: Node) -> Value:
        """Layers that read the image at every step read a copy: the caller passes it at the first step only."""
        value = self.value(node.inputs[0])
        if value.buffer.kind != "input":
            return value
        self.operations = self.still
        return self.copied(node, value)

    def _waits(self, node: Node) -> bool:
        """Returns True if its only reader computes the node as part of its own sum, so that it needs no memory."""
        users = self.users[node.name]
        if len(users) != 1 or node.op in ("affine", "relu") or node.name == self.graph.output:
            return False
        user = self.graph[users[0]]
        if user.timed != node.timed and user.name not in self.after_mean:
            return False
        same = self.constants.is_first(node.name) == self.constants.is_first(user.name)
        gained = "gain" in node.tensors or ("bias" in node.tensors and node.tensors["bias"].ndim == 2)
        if user.op == "lif":
            return self.is_natural(node)
        return (
            user.op == "sum"
            and same
            and not gained
            and node.shape == user.shape
            and self.is_natural(node)
            and (f"edge{user.inputs.index(node.name)}" not in user.tensors)
        )

    def is_natural(self, node: Node) -> bool:
        """A linear layer over the last of several axes is stored with that axis as its channels."""
        return node.op != "linear" or len(node.shape) == 1

    def _real(self, node: Node) -> Value | None:
        return None if self._waits(node) else self._stored(node)

    def _sum_node(self, node: Node) -> Value | None:
        if self.constants.is_real(node.name):
            return self._real(node)
        grid, terms = grid_of(node.shape), Terms()
        joins = {self.value(name).joins for name in node.inputs}
        if len(joins) > 1:
            raise CannotFold(f"{node.name} adds averages over windows of different sizes, which are not whole numbers")
        for name in node.inputs:
            terms.append(Edge(self.natural(node, self.value(name)), None))
        constant = np.zeros((1, grid[0]))
        buffer = Buffer(node.name, "counts", grid, *sum_range(constant, terms))
        self.operations.append(Layer(node.name, buffer, tuple(terms), constant, "count"))
        return Value(buffer, natural_index(node.shape), joins.pop())

    def _terms(self, name: str) -> _Sum:
        """Returns the value of a real node as terms: its own terms if it has no memory, otherwise its memory."""
        node = self.graph[name]
        channels = grid_of(node.shape)[0]
        if name in self.values:
            return _Sum(channels, [Edge(self.natural(node, self.values[name]), None)])
        return self._own_terms(node)

    def _own_terms(self, node: Node) -> _Sum:
        if node.op in ("conv", "linear"):
            total = _Sum(node.shape[-1] if node.op == "linear" else node.shape[0])
            total.terms = synapse(self, node)
            bias = self.constants.of(node, "bias")
            if bias is not None and bias.ndim == 1 and "gain" not in node.tensors:
                total.constant = bias[None]
            return total
        if node.op in ("affine", "relu"):
            return self._terms(node.inputs[0])
        total = _Sum(grid_of(node.shape)[0])
        for i, name in enumerate(node.inputs):
            self._add_operand(total, node, i, name)
        offset = self.constants.of(node, "offset")
        if offset is not None:
            total.constant = total.constant + per_pixel(offset, node.shape)
        return total

    def _add_operand(self, total: _Sum, node: Node, i: int, name: str) -> None:
        if self.graph[name].shape != node.shape:
            raise CannotFold(f"{node.name} adds values of different shapes, which cannot be written in C here")
        edge = self.constants.of(node, f"edge{i}")
        if not self.constants.is_real(name):
            value = self.value(name)
            weight = per_pixel(self.constants.edge(node, i, value.joins), node.shape)
            total.terms.append(Edge(self.natural(node, value), weight))
        elif edge is not None:
            total.terms.append(Edge(self.natural(node, self.value(name)), per_pixel(edge, node.shape)))
        else:
            part = self._terms(name)
            total.terms += part.terms
            total.constant = total.constant + part.constant

    def _layer(self, node: Node, total: _Sum, source: Node) -> Layer:
        """A layer that has no memory assigned yet; ``source`` is the node whose gain and bias per step it applies."""
        first = self.constants.is_first(source.name)
        adds: Adds = "float" if not self.integer else "first" if first else "int"
        has_norm = source.op in ("conv", "linear", "affine")
        gain, bias = (self.constants.of(source, what) if has_norm else None for what in ("gain", "bias"))
        stepped = gain is not None or (bias is not None and bias.ndim == 2)
        low, high = sum_range(total.constant, total.terms) if adds == "int" else (-np.inf, np.inf)
        grid = grid_of(node.shape)
        if node.op == "linear" and len(node.shape) > 1:
            grid = (node.shape[-1], 1, int(np.prod(node.shape[:-1])))
        return Layer(
            node.name, Buffer(node.name, "current", grid, low, high), tuple(total.terms), total.constant, adds,
            gain=None if not stepped else np.ones((1, grid[0])) if gain is None else np.atleast_2d(gain),
            bias=None if not stepped or bias is None else np.atleast_2d(bias), low=low, high=high,
        )  # fmt: skip

    def _stored(self, node: Node) -> Value:
        """Gives a real node memory; in an integer program, values that neurons read are rounded to integers at once."""
        layer = replace(self._layer(node, self._own_terms(node), node), relu=node.op == "relu")
        if self.integer and self.constants.is_first(node.name):
            if self._rounded(node.name):
                scale = self.constants.scale(node.name)
                layer = replace(layer, rescale=scale, out=replace(layer.out, low=-(2.0**30), high=2.0**30))
            else:
                layer = replace(layer, out=replace(layer.out, kind="first"))
        self.operations.append(layer)
        channels, _, pixels = layer.out.grid[0], 0, layer.out.size // layer.out.grid[0]
        if self.is_natural(node):
            return Value(layer.out, natural_index(node.shape))
        return Value(layer.out, np.arange(channels * pixels).reshape(node.shape))

    def _rounded(self, name: str) -> bool:
        """Returns True if neurons or sums after the first layer read it, False if other first nodes do."""
        readers = [self.graph[user] for user in self.users[name]]
        through = [r for r in readers if r.op == "repeat"]
        rounds = [self._rounded(r.name) for r in through]
        rounds += [not self.constants.is_first(r.name) for r in readers if r.op != "repeat"]
        if any(rounds) and not all(rounds):
            raise CannotFold(f"{name}: both neurons and other layers before the first neurons read it")
        return all(rounds)

    def _neurons(self, node: Node) -> Value:
        source = self.graph[node.inputs[0]]
        if self.constants.is_real(source.name):
            total = self._terms(source.name)
        else:
            value = self.value(source.name)
            total = _Sum(grid_of(node.shape)[0], [Edge(self.natural(source, value), np.array([[1 / value.joins]]))])
        waited = source.name not in self.values
        layer = self._layer(node, total, source if waited else node)
        rounded = not waited and self.value(source.name).buffer.kind == "current"  # by `_stored`
        if self.integer and self.constants.is_first(source.name) and not rounded:
            layer = replace(
                layer, adds="first", rescale=self.constants.scale(source.name), low=-(2.0**30), high=2.0**30
            )
        neurons = self.constants.neurons(node, np.inf)
        if self.integer:
            neurons = replace(neurons, limit=potential_limit(neurons, layer.low, layer.high))
        spikes = node.options["emit"] == "spikes"
        out = Buffer(node.name, "bits", layer.out.grid) if spikes else replace(
            layer.out, low=-neurons.limit, high=neurons.limit
        )  # fmt: skip
        self.operations.append(replace(layer, out=out, neurons=neurons))
        return Value(out, natural_index(node.shape))

    def _output(self) -> Buffer:
        """Returns memory of the scores; spikes and counts as scores become numbers."""
        node = self.graph[self.graph.output]
        if len(node.shape) != 1:
            raise CannotFold(f"{node.name}: the output has shape {list(node.shape)}; one score per class is needed")
        value = self.value(node.name)
        real = self.constants.is_real(node.name)
        if self.integer and self.constants.is_first(node.name):
            raise CannotFold(f"{node.name}: there are no neurons before the output, so nothing would run in integers")
        self.output_scale = value.joins * (self.constants.scale(node.name) if real else 1.0)
        if real and value.buffer.kind == "current":
            return self.natural(node, value)
        edge = Edge(self.natural(node, value), np.ones((1, 1)))
        constant = np.zeros((1, node.shape[0]))
        out = Buffer(f"{node.name}:scores", "current", grid_of(node.shape), *sum_range(constant, [edge]))
        adds: Adds = "int" if self.integer else "float"
        self.each_step.append(Layer(out.name, out, (edge,), constant, adds, low=out.low, high=out.high))
        return out


def per_pixel(constant: Array, shape: tuple[int, ...]) -> Array:
    """Returns a constant that broadcasts to a sample, as [1 or pixels, channels]."""
    full = np.broadcast_to(constant, shape).reshape(shape[0], -1).T
    return full[:1] if (full == full[:1]).all() else full


def lower(
    network: FoldedNetwork, name: str = "network", *, integer: bool = True, facts: dict[str, Any] | None = None
) -> Program:
    """Returns the program of a folded network, in the integers of `IntegerNetwork` or in float32.

    A node that cannot be written in this form raises a `CannotFold` that names it.
    """
    refuse_unfolded(network)
    return _Lowering(network, integer).run(name, network.steps_limit, facts or {})


def sum_range(constant: Array, terms: Iterable[Synapse | Edge]) -> tuple[float, float]:
    """Returns the smallest and largest possible sum of a layer's terms."""
    low, high = float(constant.min()), float(constant.max())
    for term in terms:
        if isinstance(term, Synapse):
            below, above = _row_range(term)
        else:
            corners = [w * x for w in _extremes(term.weight) for x in (term.source.low, term.source.high)]
            below, above = min(corners), max(corners)
        low, high = low + below, high + above
    return low, high


def _row_range(synapse: Synapse) -> tuple[float, float]:
    low, high = synapse.source.low, synapse.source.high
    rows = synapse.rows
    per_group = rows.reshape(-1, synapse.groups, synapse.size[0] // synapse.groups, rows.shape[1])
    smallest = np.minimum(per_group * low, per_group * high).sum((0, 2)).min()
    largest = np.maximum(per_group * low, per_group * high).sum((0, 2)).max()
    return float(smallest), float(largest)


def _extremes(weight: Array | None) -> tuple[float, float]:
    return (1.0, 1.0) if weight is None else (float(weight.min()), float(weight.max()))

"""Turns pools, means, views, products and copies of a folded network into operations of a `Program`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.integers import ratio
from steadyspike.deploy.kinds import SPIKES
from steadyspike.deploy.standalone.constants import Constants
from steadyspike.deploy.standalone.program import (
    Array,
    Buffer,
    Combine,
    Operation,
    Pool,
    Strided,
    Value,
    grid_of,
    natural_index,
    split_axes,
    strides_of,
)
from steadyspike.deploy.standalone.synapse import reads_parts

AVERAGES = ("avg_pool", "adaptive_avg_pool", "mean")


class Rearrange:
    """Lowers the nodes that have no weights; a part of `lower._Lowering`."""

    graph: Graph
    constants: Constants
    node: Node
    users: dict[str, list[str]]
    operations: list[Operation]

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        return self.values[name]

    def rearranged(self, node: Node) -> Value | None:
        if node.op in ("reshape", "permute", "slice"):
            return self._view(node)
        if node.op in (*AVERAGES, "max_pool"):
            return self._pool(node)
        if node.op in ("multiply", "matmul", "complement"):
            return self._product(node)
        if node.op == "concat":
            return self._concat(node)
        raise CannotFold(f"{node.name}: {node.op} cannot be written in C or JavaScript here")

    def _view(self, node: Node) -> Value:
        value = self.value(node.inputs[0])
        o, index = node.options, value.index
        if node.op == "reshape":
            index = index.reshape(node.shape)
        elif node.op == "permute":
            index = index.transpose(o["axes"])
        else:
            index = index.take(range(o["start"], o["start"] + o["length"]), o["axis"])
        return Value(value.buffer, index, value.joins)

    def natural(self, node: Node, value: Value) -> Buffer:
        """Returns the buffer of a value that is stored as [pixels][channels], copied if it is not."""
        same = np.array_equal(value.index.reshape(-1), natural_index(value.index.shape).reshape(-1))
        grid = grid_of(value.index.shape)
        if same and value.buffer.size == value.index.size and value.buffer.grid[0] == grid[0]:
            return value.buffer
        return self.copied(node, value).buffer

    def copied(self, node: Node, value: Value) -> Value:
        """Returns a copy stored as [pixels][channels]."""
        shape, kind = value.index.shape, value.buffer.kind
        if kind == "input":
            kind = "first" if self.constants.integers else "current"
        out = Buffer(f"{node.name}:copy", kind, grid_of(shape), value.buffer.low, value.buffer.high)
        self._combine(node, out, natural_index(shape), [value.index], [value.buffer])
        return Value(out, natural_index(shape), value.joins)

    def _combine(
        self, node: Node, out: Buffer, places: Array, indices: list[Array], buffers: list[Buffer], *,
        reduced: int = 0, complement: bool = False, factor: float = 1.0,
    ) -> None:  # fmt: skip
        """Adds a `Combine`; indices have the axes of ``places``, followed by the reduced axes."""
        places = np.broadcast_to(places.reshape(*places.shape, *[1] * reduced), indices[0].shape)
        axis = 0
        while axis < indices[0].ndim:
            split = split_axes([places, *indices], axis)
            if split is not None and split[0].ndim > places.ndim:
                reduced += axis >= places.ndim - reduced
                axis += 1
            if split is not None:
                places, *indices = split
            axis += 1
        walks = [strides_of(index) for index in (places, *indices)]
        if any(walk is None for walk in walks):
            raise CannotFold(f"{node.name}: its operands are views that strides cannot describe")
        target, *operands = (walk for walk in walks if walk is not None)
        pairs = tuple(Strided(b, base, strides) for b, (base, strides) in zip(buffers, operands))
        self.operations.append(
            Combine(node.name, Strided(out, target[0], target[1]), pairs, indices[0].shape, reduced, complement, factor)
        )

    def _result(self, node: Node, high: float, joins: int) -> tuple[Buffer, int, float]:
        """Memory for a node's value, the number of spikes per unit, and the factor from integer products to it."""
        grid, kind = grid_of(node.shape), self.constants.kinds[node.name]
        if kind == SPIKES:
            return Buffer(node.name, "bits", grid), 1, 1.0
        if not self.constants.is_real(node.name):
            return Buffer(node.name, "counts", grid, 0.0, high), joins, 1.0
        first = self.constants.is_first(node.name)
        if self.constants.integers and not first and node.op in AVERAGES:
            if not self._only_scores(node.name):
                raise CannotFold(f"{node.name}: an average of integer currents is not a whole number; average spikes")
            source = self.value(node.inputs[0]).buffer
            return Buffer(node.name, "current", grid, source.low * joins, source.high * joins), joins, 1.0
        return Buffer(node.name, "first" if first else "current", grid, -math.inf, math.inf), 1, 1 / joins

    def _only_scores(self, name: str) -> bool:
        """Returns True if only the output reads a value, directly or through views."""
        views = ("reshape", "permute", "slice", "time_mean")
        if name == self.graph.output:
            return not self.users[name]
        return all(self.graph[user].op in views and self._only_scores(user) for user in self.users[name])

    def _product(self, node: Node) -> Value:
        values = [self.value(name) for name in node.inputs]
        high, joins, reduced = math.prod(v.buffer.high for v in values), math.prod(v.joins for v in values), 0
        if node.op == "matmul":
            a, b = (v.index for v in values)
            high, reduced = high * a.shape[-1], 1
            indices = [a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :]]
        else:
            indices = [v.index for v in values]
        indices = [np.array(index) for index in np.broadcast_arrays(*indices)]
        out, joins, factor = self._result(node, high, joins)
        self._combine(node, out, natural_index(node.shape), indices, [v.buffer for v in values], reduced=reduced,
                      complement=node.op == "complement", factor=factor)  # fmt: skip
        return Value(out, natural_index(node.shape), joins)

    def _concat(self, node: Node) -> Value | None:
        if all(reads_parts(self.graph[user], node) for user in self.users[node.name]):
            return None
        values = [self.value(name) for name in node.inputs]
        joins = {v.joins for v in values}
        if len(joins) > 1:
            raise CannotFold(f"{node.name} combines averages over windows of different sizes")
        out, _, _ = self._result(node, max(v.buffer.high for v in values), joins.pop())
        places, start = natural_index(node.shape), 0
        for value in values:
            size = value.index.shape[node.options["axis"]]
            part = places.take(range(start, start + size), node.options["axis"])
            self._combine(node, out, part, [value.index], [value.buffer])
            start += size
        return Value(out, natural_index(node.shape), values[0].joins)

    def _pool(self, node: Node) -> Value:
        value = self.value(node.inputs[0])
        joins = 1 if node.op == "max_pool" else ratio(self.graph, node)
        if node.op == "mean":
            return self._mean(node, value, joins)
        source = self.natural(node, value)
        o = node.options
        if node.op == "adaptive_avg_pool":
            kernel, stride = self._adaptive(node)
            padding, dilation = (0, 0), (1, 1)
        else:
            kernel, stride, padding = _two(o["kernel_size"], 1), _two(o["stride"], 1), _two(o["padding"], 0)
            dilation = _two(o.get("dilation", (1, 1)), 1)
        if node.op == "max_pool":
            kind = source.kind if source.kind != "input" else "first" if self.constants.integers else "current"
            out = Buffer(node.name, kind, grid_of(node.shape), source.low, source.high)
            total, factor = value.joins, 1.0
        else:
            out, total, factor = self._result(node, source.high * joins, joins * value.joins)
        takes = "max" if node.op == "max_pool" else "sum"
        self.operations.append(Pool(node.name, source, out, kernel, stride, padding, dilation, takes, factor))  # type: ignore[arg-type]
        return Value(out, natural_index(node.shape), total)

    def _adaptive(self, node: Node) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns kernel and stride of windows that all have one size (`ratio` raises an error for others)."""
        before = self.graph[node.inputs[0]].shape[-2:]
        kernel, stride = [], []
        for size, out in zip(before, node.shape[-2:]):
            starts = [i * size // out for i in range(out)]
            kernel.append(-(-size // out))
            stride.append(starts[1] if out > 1 else 1)
            if starts != [i * stride[-1] for i in range(out)]:
                raise CannotFold(f"{node.name}: windows that are not evenly spaced cannot be written in C here")
        return (kernel[0], kernel[1]), (stride[0], stride[1])

    def _mean(self, node: Node, value: Value, joins: int) -> Value:
        shape, axes = value.index.shape, sorted(axis % value.index.ndim for axis in node.options["axes"])
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        out, total, factor = self._result(node, value.buffer.high * joins, joins * value.joins)
        same = np.array_equal(value.index.reshape(-1), natural_index(shape).reshape(-1))
        if kept == [0] and same and value.buffer.size == value.index.size and value.buffer.grid[0] == shape[0]:
            size = value.buffer.grid[1:]
            self.operations.append(Pool(node.name, value.buffer, out, size, size, (0, 0), (1, 1), "sum", factor))
        else:
            places = natural_index(node.shape).reshape([shape[axis] for axis in kept])
            index = value.index.transpose([*kept, *axes])
            self._combine(node, out, places, [index], [value.buffer], reduced=len(axes), factor=factor)
        return Value(out, natural_index(node.shape), total)


def _two(sizes: Sequence[int], first: int) -> tuple[int, int]:
    """Returns sizes of a pool over two axes.

    Over one axis it is a pool of one row of pixels with ``first`` as its height.
    """
    return (first, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])

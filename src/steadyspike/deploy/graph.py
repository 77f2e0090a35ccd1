"""The graph of an inference network: plain data that can be stored in a file and from which every export starts.

A value belongs to one sample at one time step. Whether it has a time axis is a property of the node (``timed``), not of
its shape, so the same graph serves a batch call ([T, B, ...]), a stream ([B, ...] per step) and an exporter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Node:
    """One operation.

    name: unique in the graph; neurons and synapses have the name of the module they come from
    op: a key of `steadyspike.deploy.ops.OPS`
    inputs: names of the nodes whose values it takes
    options: numbers, strings and lists, as in JSON
    tensors: the constants
    shape: of its value, for one sample at one time step
    timed: True if the value has a time axis; False for a value that is computed once for all steps
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    timed: bool
    options: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def with_inputs(self, *inputs: str) -> Node:
        return replace(self, inputs=inputs)


class Graph:
    """Nodes in the order in which they run, with one input and one output.

    timesteps: T for which the graph was made; only nodes with constants per step depend on it
    """

    def __init__(self, timesteps: int) -> None:
        self.nodes: dict[str, Node] = {}
        self.timesteps = timesteps
        self.output = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def input(self) -> Node:
        return next(node for node in self if node.op == "input")

    def add(self, node: Node) -> str:
        """Appends a node; if its name is already used, it gets a number."""
        name, i = node.name, 1
        while name in self.nodes:
            i += 1
            name = f"{node.name}:{i}"
        self.nodes[name] = replace(node, name=name)
        return name

    def consumers(self) -> dict[str, list[str]]:
        """Returns, for every node, the names of the nodes that read its value.

        One that reads it twice is listed twice.
        """
        users: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in node.inputs:
                users[name].append(node.name)
        return users

    def neurons(self) -> list[Node]:
        return [node for node in self if node.op == "lif"]

    def pruned(self) -> Graph:
        """Returns the same graph without nodes that the output does not need (the input stays)."""
        needed, todo = set[str](), [self.output]
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                todo += [*self[name].inputs, *([self[name].options["of"]] if self[name].op == "previous" else [])]
        graph = Graph(self.timesteps)
        graph.nodes = {n.name: n for n in self if n.name in needed or n.op == "input"}
        graph.output = self.output
        return graph

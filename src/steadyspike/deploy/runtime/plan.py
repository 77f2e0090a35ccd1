"""How a graph runs: which nodes become one layer, which work on bits, and which are computed by `deploy.ops`.

A layer is a neuron with all parts of its current: convolutions and linear layers of spikes, identity edges, and numbers
that other steps computed. A synapse that is not read by exactly one neuron is a layer without a neuron.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.runtime.values import as_image

Pair = tuple[int, int]


@dataclass(frozen=True)
class Synapse:
    """A convolution, or a linear layer as one.

    weight: [O, C, rows, columns], for the input as images

    dense: the node with its input as numbers
    writers: nodes of bits whose sum is that input; empty if there are none
    shape: of a sample of the input, [C, ...]
    pool: (rows, columns) of the adjacent windows over which the sum of the writers is averaged before it is the input;
        (1, 1): no pool
    """

    name: str
    dense: str
    writers: tuple[str, ...]
    shape: tuple[int, ...]
    weight: Tensor
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    pool: Pair = (1, 1)


@dataclass(frozen=True)
class Identity:
    """Spikes of ``writer`` that reach the same position, each with its channel's current ``value`` [C]."""

    writer: str
    value: Tensor


@dataclass(frozen=True)
class Numbers:
    """The numbers of a node, times ``factor`` (broadcastable to a sample) if there is one."""

    name: str
    factor: Tensor | None = None


@dataclass
class Layer:
    """A neuron with its current, or only a current (``neuron`` is None).

    gain, bias: [C] or [T, C]
    """

    node: Node
    neuron: Node | None = None
    synapses: list[Synapse] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    numbers: list[Numbers] = field(default_factory=list)
    gain: Tensor | None = None
    bias: Tensor | None = None
    covers: list[str] = field(default_factory=list)

    @property
    def reads(self) -> set[str]:
        names = {name for s in self.synapses for name in (s.dense, *s.writers)}
        return names | {i.writer for i in self.identities} | {n.name for n in self.numbers}

    def add_bias(self, bias: Tensor) -> None:
        self.bias = bias if self.bias is None else self.bias + bias


@dataclass(frozen=True)
class OnBits:
    """A node that takes bits and returns bits or numbers: a pool, a mean over pixels, a view."""

    node: Node


@dataclass(frozen=True)
class Plain:
    """A node that `deploy.ops` computes, on numbers."""

    node: Node


Step = Layer | OnBits | Plain


class Plan:
    """The steps of a graph, in execution order, by the name of the node that they compute."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.consumers()
        self.bits: set[str] = set()
        self.steps: dict[str, Step] = {}
        covered = set[str]()
        for node in graph:
            if (node.op == "lif" and node.options["emit"] == "spikes") or self._keeps_bits(node):
                self.bits.add(node.name)
        for node in reversed(list(graph)):
            if node.op == "input" or node.name in covered:
                continue
            step = self._step(node)
            if isinstance(step, Layer):
                covered |= set(step.covers)
            self.steps[node.name] = step
        self.steps = dict(reversed(self.steps.items()))
        self.needed = self._needed()

    def _needed(self) -> list[str]:
        """Returns steps that always run; the others run only if a layer is computed densely."""
        needed, todo = set[str](), [self.graph.output]
        while todo:
            name = todo.pop()
            if name in needed or name not in self.steps:
                continue
            needed.add(name)
            todo += self.reads(name, certain=True)
        return [name for name in self.steps if name in needed]

    def reads(self, name: str, certain: bool = False) -> set[str]:
        """Returns the nodes that a step reads; with ``certain``, without those that it reads only when it is dense."""
        step = self.steps.get(name)
        if not isinstance(step, Layer):
            return set() if step is None else set(step.node.inputs)
        if not certain:
            return step.reads
        dense = {s.dense for s in step.synapses if s.writers and s.dense not in s.writers}
        return (step.reads - dense) | {n.name for n in step.numbers}

    def last_readers(self) -> dict[str, str]:
        """Returns, for each node, the step after which its value is not needed any more."""
        last: dict[str, str] = {}
        for name in self.needed:
            todo, seen = list(self.reads(name)), set[str]()
            while todo:
                read = todo.pop()
                if read not in seen:
                    seen.add(read)
                    last[read] = name
                    todo += [] if read in self.needed else self.reads(read)
        return last

    def _keeps_bits(self, node: Node) -> bool:
        if not node.timed or not node.inputs or any(name not in self.bits for name in node.inputs):
            return False
        source = self.graph[node.inputs[0]]
        if node.op == "max_pool":
            return len(source.shape) == 3 and not node.options["ceil_mode"]
        if node.op == "reshape":
            return node.shape[0] == source.shape[0]
        return node.op == "concat" and node.options["axis"] == 0 and all(
            self.graph[name].shape[0] % 64 == 0 for name in node.inputs[:-1]
        )  # fmt: skip

    def _step(self, node: Node) -> Step:
        if node.op == "lif":
            layer = Layer(node, node, covers=[node.name])
            self._collect(layer, node.inputs[0])
            return layer
        if node.name in self.bits or _pools(node, self.graph, self.bits):
            return OnBits(node)
        if node.op in ("conv", "linear", "sum") and node.timed:
            layer = Layer(node)
            self._collect(layer, node.name, root=True)
            if any(synapse.writers for synapse in layer.synapses):
                return layer
        return Plain(node)

    def _collect(self, layer: Layer, name: str, root: bool = False) -> None:
        """Adds the value of ``name`` to the layer's current, with the nodes before it that only this layer needs."""
        node = self.graph[name]
        own = root or (len(self.users[name]) == 1 and name != self.graph.output)
        if name in self.bits:
            layer.identities.append(Identity(name, torch.ones(node.shape[0])))
        elif own and node.op in ("conv", "linear") and node.timed and self._takes_synapse(layer, node):
            layer.covers.append(name)
        elif own and node.op == "sum" and node.timed and _offset(node) is not NotImplemented:
            layer.covers.append(name)
            self._collect_sum(layer, node)
        else:
            layer.numbers.append(Numbers(name))

    def _collect_sum(self, layer: Layer, node: Node) -> None:
        offset = _offset(node)
        if offset is not None:
            layer.add_bias(offset)
        for i, name in enumerate(node.inputs):
            edge = node.tensors.get(f"edge{i}")
            value = None if edge is None else _per_channel(edge, node)
            if name in self.bits and value is not None:
                layer.identities.append(Identity(name, value))
            elif edge is not None:
                layer.numbers.append(Numbers(name, edge))
            else:
                self._collect(layer, name)

    def _takes_synapse(self, layer: Layer, node: Node) -> bool:
        synapse = self._synapse(node)
        gain, bias = node.tensors.get("gain"), node.tensors.get("bias")
        # A gain multiplies everything that the layer convolves.
        if synapse is None or layer.gain is not None or (gain is not None and layer.synapses):
            return False
        layer.synapses.append(synapse)
        layer.gain = gain
        if bias is not None:
            layer.add_bias(bias)
        return True

    def _synapse(self, node: Node) -> Synapse | None:
        weight, dense = node.tensors["weight"], node.inputs[0]
        source = self.graph[dense]
        if node.op == "linear":
            if len(node.shape) != 1:
                return None
            if source.op == "reshape" and self._writers(source.inputs[0]):  # a flattened image
                dense, source = source.inputs[0], self.graph[source.inputs[0]]
            shape = as_image(source.shape)
            return Synapse(node.name, dense, self._writers(dense), source.shape, weight.view(-1, *shape))
        if weight.ndim > 4:
            return None
        o = node.options
        four = weight if weight.ndim == 4 else weight.unsqueeze(-1)
        pairs = (_pair(o["stride"], 1), _pair(o["padding"], 0), _pair(o["dilation"], 1))
        writers = self._writers(dense) if o["groups"] == 1 else ()
        pool = self._pool_before(source) if not writers and o["groups"] == 1 and pairs[2] == (1, 1) else (1, 1)
        if pool != (1, 1):
            writers = self._writers(source.inputs[0])
        return Synapse(node.name, dense, writers, source.shape, four, *pairs, o["groups"], pool)

    def _pool_before(self, node: Node) -> Pair:
        """The windows of an average pool of spikes that reads every pixel exactly once; (1, 1) for other nodes."""
        if node.op != "avg_pool" or not self._writers(node.inputs[0]):
            return 1, 1
        kernel, stride, padding = (_pair(node.options[name], 1) for name in ("kernel_size", "stride", "padding"))
        before = self.graph[node.inputs[0]].shape
        whole = len(before) == 3 and all(size % k == 0 for size, k in zip(before[1:], kernel))
        return kernel if whole and kernel == stride and padding == (0, 0) else (1, 1)

    def _writers(self, name: str) -> tuple[str, ...]:
        """Returns the nodes of bits whose sum is the value of ``name``; empty if it is not such a sum."""
        node = self.graph[name]
        if name in self.bits:
            return (name,)
        if node.op != "sum" or node.tensors:
            return ()
        of_inputs = [self._writers(i) for i in node.inputs]
        return tuple(w for writers in of_inputs for w in writers) if all(of_inputs) else ()


def _pair(values: list[int], missing: int) -> Pair:
    return (values[0], values[1]) if len(values) == 2 else (values[0], missing)


def _offset(node: Node) -> Tensor | None:
    """Returns the constant that a sum adds, per channel; NotImplemented if it differs within a channel."""
    offset = node.tensors.get("offset")
    if offset is None:
        return None
    values = _per_channel(offset, node)
    return NotImplemented if values is None else values


def _per_channel(constant: Tensor, node: Node) -> Tensor | None:
    """Returns [C] from a constant that broadcasts to the node's sample; None if it is not one per channel."""
    channels, axes = node.shape[0], len(node.shape)
    if constant.numel() == 1:
        return constant.reshape(1).expand(channels)
    if constant.ndim == axes and constant.numel() == constant.shape[0] == channels:
        return constant.reshape(channels)
    return None


def _pools(node: Node, graph: Graph, bits: set[str]) -> bool:
    """Returns True for averages that count spikes over pixels."""
    if not node.inputs or node.inputs[0] not in bits or len(graph[node.inputs[0]].shape) != 3:
        return False
    if node.op == "avg_pool":
        return not node.options["ceil_mode"]
    if node.op == "adaptive_avg_pool":
        return tuple(node.shape[1:]) == (1, 1)
    return node.op == "mean" and sorted(node.options["axes"]) == [1, 2]

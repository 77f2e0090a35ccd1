"""The constants of a folded network's nodes as a program needs them: float32, or the integers of `IntegerNetwork`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.kinds import REAL, value_kinds
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.standalone.program import DECAY, Array, Neurons
from steadyspike.deploy.synapses import compose_linear


class Constants:
    """Weights, edges, biases and neuron constants by node; ``first``: nodes before the first neuron."""

    def __init__(self, network: FoldedNetwork, integer: bool) -> None:
        self.integers = IntegerNetwork(network) if integer else None
        self.graph: Graph = self.integers.graph if self.integers else compose_linear(network.graph)
        self.kinds = self.integers.kinds if self.integers else value_kinds(self.graph)
        self.first: set[str] = self.integers.first if self.integers else set()

    def is_first(self, name: str) -> bool:
        return name in self.first

    def scale(self, name: str) -> float:
        """Returns the integer units per 1 of a current; 1 in float32 programs."""
        return self.integers.scale_of(name) if self.integers else 1.0

    def of(self, node: Node, what: str) -> Array | None:
        """Returns a constant of a node.

        Weights and edges that read an average are those of the sum (`joins` times smaller).
        """
        exact = self.integers is not None and node.name not in self.first
        tensors = self.integers.nodes[node.name].tensors if self.integers and exact else node.tensors
        tensor = tensors.get(what)
        return None if tensor is None else _array(tensor)

    def weight(self, node: Node, joins: int) -> Array:
        """Returns the weight that reads sums of ``joins`` spikes; an integer network's weights do that already."""
        weight = self.of(node, "weight")
        assert weight is not None
        return weight if self.integers and node.name not in self.first else weight / joins

    def edge(self, node: Node, i: int, joins: int) -> Array:
        """Returns the constant of the i-th operand of a sum, for an operand that is spikes or counts."""
        edge = self.of(node, f"edge{i}")
        if self.integers:
            assert edge is not None
            return edge
        return (np.array(1.0) if edge is None else edge) / joins

    def neurons(self, node: Node, limit: float) -> Neurons:
        """Returns the LIF constants of a neuron node."""
        o, leak = node.options, _array(node.tensors["leak"])
        if self.integers:
            keep, gain = (_array(self.integers.nodes[node.name].tensors[what]) for what in ("keep", "gain"))
        else:
            one = np.float32(1)
            keep, gain = one - leak.astype(np.float32), leak if o["decay_input"] else np.ones_like(leak)
        threshold, start = self.of(node, "threshold"), self.of(node, "start")
        assert threshold is not None and start is not None
        pixels = start.reshape(start.shape[0], -1).T if start.ndim > 1 else start[None]
        return Neurons(node.name, threshold[None], keep[None], gain[None], pixels, o["reset"], o["strict"], o["emit"],
                       limit)  # fmt: skip

    def is_real(self, name: str) -> bool:
        return self.kinds[name] == REAL


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()


def potential_limit(neurons: Neurons, low: float, high: float) -> float:
    """Returns the largest |U| of integer neurons whose current stays within [low, high]; `math.inf` without a leak.

    |U| <= (keep |U| + gain |I|) / 4096 + V: a leak bounds it for any number of steps.
    """
    largest = max(abs(low), abs(high))
    keep, gain = float(neurons.keep.max()), float(neurons.gain.max())
    resting = max(float(np.abs(neurons.start).max()), float(np.abs(neurons.threshold).max()))
    if keep >= DECAY:
        return float("inf")
    return max(resting, gain * largest / (DECAY - keep)) + float(np.abs(neurons.threshold).max())

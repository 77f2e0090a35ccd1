"""Recurrent networks: a node ``previous`` returns the value that another node had some steps ago.

Such a network runs one time step after the other. ``Past`` stores the values that later steps read; before the first
step all of them are 0. Programs that compute all steps of a layer at once raise an error for such networks
(`refuse_recurrent`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Graph, Node


def loops(graph: Graph) -> list[Node]:
    """Returns the nodes that read an earlier time step; a network without such nodes is not recurrent."""
    return [node for node in graph if node.op == "previous"]


def refuse_recurrent(graph: Graph, task: str) -> None:
    for node in loops(graph):
        raise CannotFold(f"{node.name}: the network is recurrent (it reads {node.options['of']} again); {task}")


class Past:
    """The values of a recurrent network's nodes at earlier steps, [1, B, ...] each."""

    def __init__(self, graph: Graph) -> None:
        lengths: dict[str, int] = {}
        for node in loops(graph):
            of = node.options["of"]
            lengths[of] = max(node.options["steps"], lengths.get(of, 0))
        self._values: dict[str, deque[Tensor]] = {name: deque(maxlen=n) for name, n in lengths.items()}

    @property
    def names(self) -> set[str]:
        return set(self._values)

    def read(self, node: Node, batch: int, like: Tensor) -> Tensor:
        """Returns the value of a node ``previous``; 0 for the steps before the first.

        like: has the dtype and device
        """
        values, steps = self._values[node.options["of"]], node.options["steps"]
        return values[-steps] if len(values) >= steps else like.new_zeros(1, batch, *node.shape)

    def keep(self, values: Mapping[str, Tensor]) -> None:
        """Adds the values of the step that was just computed."""
        for name, earlier in self._values.items():
            earlier.append(values[name])

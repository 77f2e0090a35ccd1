"""The nodes and edges of a NIR graph in the order in which they run: nested graphs are expanded, cycles are cut.

NIR defines no order of the nodes in a cycle. Here a cycle is cut at an edge that leaves a neuron: the neuron's output
reaches the next node one step later, and is 0 at the first step. A cycle through a Delay node needs no cut: the node is
the delay.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.schema import MOST_NODES

NEURONS = ("LIF", "IF", "CubaLIF", "LI", "CubaLI", "I", "Threshold")
PASS = "Pass"  # the kind of an Input or Output of a nested graph: it passes its value on
MOST_DEPTH, MOST_CUTS = 16, 256
Edge = tuple[str, str]


class NirGraph:
    """kind, before, after: by the node's name; ``outer.inner`` for nodes of nested graphs

    resets: for every Threshold with a soft reset, the Scale node that does the reset
    """

    def __init__(self, source: Any, dt: float) -> None:
        self.nodes: dict[str, Any] = {}
        self.kind: dict[str, str] = {}
        self.before: dict[str, list[str]] = {}
        self.after: dict[str, list[str]] = {}
        self._open(source, "", 0)
        scales = {name: self._reset(name, dt) for name in self.nodes}
        self.resets = {name: scale for name, scale in scales.items() if scale is not None}

    def _open(self, graph: Any, prefix: str, depth: int) -> tuple[list[str], list[str]]:
        """Adds the nodes and edges of a graph; returns the names of its inputs and outputs."""
        if depth > MOST_DEPTH:
            raise CannotFold(f"{prefix.rstrip('.')}: the NIR graph is nested too deeply")
        inputs: list[str] = []
        outputs: list[str] = []
        ends: dict[str, tuple[list[str], list[str]]] = {}  # by name: ends of edges, starts of edges
        for name, node in graph.nodes.items():
            full, kind = prefix + _printable(name), type(node).__name__
            if kind == "NIRGraph":
                ends[name] = self._open(node, full + ".", depth + 1)
                continue
            if full in self.nodes:
                raise CannotFold(f"{full}: two nodes of the NIR graph have this name")
            inside = depth > 0 and kind in ("Input", "Output")
            self.nodes[full], self.kind[full] = node, PASS if inside else kind
            self.before[full], self.after[full] = [], []
            ends[name] = [full], [full]
            inputs += [full] if kind == "Input" else []
            outputs += [full] if kind == "Output" else []
            if len(self.nodes) > MOST_NODES:
                raise CannotFold(f"the NIR graph has more than {MOST_NODES} nodes")
        for a, b in dict.fromkeys(map(tuple, graph.edges)):
            if a not in ends or b not in ends:
                raise CannotFold(f"the NIR graph has an edge from {prefix + a!r} to {prefix + b!r}, and no such nodes")
            leaves, arrives = ends[a][1], ends[b][0]
            for name, there in ((a, leaves), (b, arrives)):
                if len(there) != 1:
                    raise CannotFold(
                        f"{prefix + name}: a nested graph needs one input and one output, not {len(there)}"
                    )
            self.before[arrives[0]].append(leaves[0])
            self.after[leaves[0]].append(arrives[0])
        return inputs, outputs

    def _reset(self, name: str, dt: float) -> str | None:
        """Returns the Scale node of a Threshold's soft reset: Threshold -> Scale -> LI -> Threshold.

        Returns None for anything else. If another node reads the membrane, or if the Scale does not subtract the
        threshold from it, the nodes are read one by one, as a cycle.
        """
        before = self.before[name]
        if self.kind[name] != "Threshold" or len(before) != 1 or self.kind[before[0]] != "LI":
            return None
        scales = [s for s in self.after[name] if self.kind[s] == "Scale" and self.after[s] == before]
        if len(scales) != 1 or self.before[scales[0]] != [name] or self.after[before[0]] != [name]:
            return None
        membrane, scale = self.nodes[before[0]], self.nodes[scales[0]].scale
        return scales[0] if _takes_off(scale, self.nodes[name].threshold, membrane, dt) else None

    def order(self, last: str) -> tuple[list[str], set[Edge]]:
        """Returns the nodes that ``last`` needs, each after its inputs, and the edges that carry the previous step.

        The traversal is not recursive. The feedback edge of a soft reset is part of its neuron and is ignored for the
        order.
        """
        cut: set[Edge] = set()
        resets = set(self.resets.items())
        for _ in range(MOST_CUTS):
            order, closed = self._walk(last, cut, resets)
            if closed is None:
                return order, cut
            cut.add(closed)
        raise CannotFold(f"{last}: the NIR graph has more cycles than this importer cuts ({MOST_CUTS})")

    def _walk(self, last: str, cut: set[Edge], resets: set[Edge]) -> tuple[list[str], Edge | None]:
        """Returns the order, or an edge that must also be cut. Cycles that end at a neuron are cut at once."""
        order: list[str] = []
        seen: set[str] = set()
        roots = [last]
        while roots:
            root = roots.pop()
            if root in seen:
                continue
            seen.add(root)
            path, position = [root], {root: 0}
            rest = [iter(self._needs(root, roots))]
            while path:
                name, fresh = path[-1], None
                for source in rest[-1]:
                    if (source, name) in cut or (source, name) in resets:
                        roots.append(source)
                    elif source in position:
                        closed = self._cut(path[position[source] :], source)
                        if closed != (source, name):
                            return [], closed
                        cut.add(closed)
                    elif source not in seen:
                        fresh = source
                        break
                if fresh is not None:
                    seen.add(fresh)
                    position[fresh] = len(path)
                    path.append(fresh)
                    rest.append(iter(self._needs(fresh, roots)))
                    continue
                order.append(name)
                rest.pop()
                del position[path.pop()]
        return order, None

    def _needs(self, name: str, roots: list[str]) -> list[str]:
        """Returns the nodes that must run before a node; the source of a Delay may run later in the step."""
        if self.kind[name] != "Delay":
            return self.before[name]
        roots += self.before[name]
        return []

    def _cut(self, cycle: list[str], source: str) -> Edge:
        """Returns the edge of a cycle that gets the delay.

        cycle: each node reads the next, the last one reads the first
        """
        if self.kind[source] in NEURONS:
            return source, cycle[-1]
        for reader, name in itertools.pairwise(cycle):
            if self.kind[name] in NEURONS:
                return name, reader
        raise CannotFold(f"{source}: the NIR graph has a cycle without a neuron or a delay (through {cycle[-1]})")


def _printable(name: str) -> str:
    """Returns a name without characters that would break a line or control a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _takes_off(scale: Any, threshold: Any, membrane: Any, dt: float) -> bool:
    """Returns whether a spike's feedback lowers an LI membrane by the threshold before it decays: (1 - tau / dt) V / r.

    The constants may be float32. Values that are not numbers raise an error later, with the node's name.
    """
    try:
        v, tau, r, given = (np.asarray(a, dtype=np.float64) for a in (threshold, membrane.tau, membrane.r, scale))
        with np.errstate(all="ignore"):
            expected = (1 - tau / dt) * v / r
            return bool((np.abs(given - expected) <= 1e-6 * (tau / dt) * np.abs(v / r)).all())
    except (TypeError, ValueError):
        return False

"""Describes how a runtime computes each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steadyspike.deploy.runtime.plan import Layer, OnBits, Plan

FALLBACK = "plain PyTorch, spikes unpacked"
PLAIN = "plain PyTorch"
LAZY = "not at all, unless a layer that reads it is dense"


@dataclass(frozen=True)
class Row:
    """One node.

    how: what runs it
    rate: of a neuron layer in the last call, None before
    """

    name: str
    op: str
    how: str
    rate: float | None = None


@dataclass(frozen=True)
class Report:
    """The rows of all nodes; ``str(report)`` is a table."""

    rows: list[Row]

    @property
    def fallbacks(self) -> list[str]:
        """Returns nodes that read spikes but have no code for bits: they get them as floats."""
        return [row.name for row in self.rows if row.how == FALLBACK]

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        lines = []
        for row in self.rows:
            rate = "" if row.rate is None else f"  {row.rate:6.2%} fire"
            lines.append(f"{row.name:{width}}  {row.op:17}  {row.how}{rate}")
        return "\n".join(lines)


def describe(plan: Plan, ways: Mapping[str, str], rates: Mapping[str, float]) -> Report:
    inside = {name: layer for layer in plan.steps.values() if isinstance(layer, Layer) for name in layer.covers}
    synapses = {s.name: s for layer in inside.values() for s in layer.synapses}
    rows = []
    for node in plan.graph:
        step = plan.steps.get(node.name)
        if node.op == "input":
            continue
        if node.name in synapses:
            can = "events or dense" if synapses[node.name].writers else "dense"
            how = f"in a layer, {ways.get(node.name, can)}"
        elif isinstance(step, Layer) or node.name in inside:
            how = "a layer" if isinstance(step, Layer) else "in a layer"
        elif node.name not in plan.needed:
            how = LAZY
        elif isinstance(step, OnBits):
            how = "on bits"
        else:
            how = FALLBACK if any(name in plan.bits for name in node.inputs) else PLAIN
        rows.append(Row(node.name, node.op, how, rates.get(node.name)))
    return Report(rows)

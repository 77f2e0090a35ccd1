"""The kinds of values in a folded network: spikes, counts of spikes, averages of spikes, or real numbers."""

from __future__ import annotations

from steadyspike.deploy.graph import Graph, Node

SPIKES, COUNTS, POOLED, REAL = "spikes", "counts", "pooled", "real"
_REARRANGE = ("reshape", "permute", "slice", "repeat", "concat", "upsample")
_AVERAGE = ("avg_pool", "adaptive_avg_pool", "mean", "time_mean")


def value_kinds(graph: Graph) -> dict[str, str]:
    """Returns the kind of every node's value, by name.

    ``spikes``: 0 or 1; ``counts``: whole numbers, sums or products of spikes; ``pooled``: averages of these; ``real``.
    """
    kinds: dict[str, str] = {}
    for node in graph:
        if node.op == "previous":  # spikes of a neuron; nodes that are computed later count as real numbers
            of = graph[node.options["of"]]
            kinds[node.name] = _kind(of, []) if of.op == "lif" else kinds.get(of.name, REAL)
        else:
            kinds[node.name] = _kind(node, [kinds[name] for name in node.inputs])
    return kinds


def _kind(node: Node, inputs: list[str]) -> str:
    if node.op == "lif":
        return REAL if node.options["emit"] == "potential" else SPIKES
    if not inputs or REAL in inputs:
        return REAL
    if node.op == "upsample" and node.options.get("mode", "nearest") != "nearest":
        return REAL
    if node.op in _REARRANGE or node.op in ("max_pool", "adaptive_max_pool", "pad"):
        return inputs[0] if len(set(inputs)) == 1 else POOLED if POOLED in inputs else COUNTS
    if node.op == "complement":
        return inputs[0] if inputs[0] == SPIKES else REAL
    if node.op == "multiply":
        return SPIKES if set(inputs) == {SPIKES} else POOLED if POOLED in inputs else COUNTS
    if node.op == "matmul":
        return POOLED if POOLED in inputs else COUNTS
    if node.op == "time_sum":
        return COUNTS if inputs[0] == SPIKES else inputs[0]
    if node.op in _AVERAGE:
        return POOLED
    if node.op == "sum" and not node.tensors:
        return POOLED if POOLED in inputs else COUNTS
    return REAL

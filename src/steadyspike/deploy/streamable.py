"""Decides which folded networks can run one time step at a time, and why the others cannot."""

from __future__ import annotations

from steadyspike.deploy.graph import Graph
from steadyspike.deploy.ops import OPS

_WITH_CONSTANTS = {"conv", "linear", "affine", "sum", "concat", "complement"}  # f(x) = A x + b


def why_no_stream(graph: Graph) -> str | None:
    """Returns why the steps of ``graph`` cannot be run one by one; None if they can.

    A mean over time at the end is the mean of the steps' outputs, also after layers A x + b. A sum over time is their
    sum if b = 0. Any other node that reads a value of all steps cannot compute the first step before the last one.
    """
    over_time: dict[str, str] = {}  # nodes that depend on all steps -> the mean or sum that causes this
    for node in graph:
        if node.op in ("time_mean", "time_sum"):
            over_time[node.name] = node.op
            continue
        through = {over_time[name] for name in node.inputs if name in over_time}
        if not through:
            continue
        constants = {"bias", "offset"} & node.tensors.keys() or node.op == "complement"
        mixes = node.op == "concat" and any(name not in over_time for name in node.inputs)
        if node.timed or len(through) > 1 or not (OPS[node.op].linear or node.op in _WITH_CONSTANTS):
            return f"{node.name} needs all time steps at once: it reads a mean or sum over time"
        if through == {"time_sum"} and (constants or mixes):
            return f"{node.name} needs all time steps at once: it adds a constant to a sum over time"
        over_time[node.name] = through.pop()
    return None

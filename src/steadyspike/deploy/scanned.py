"""A folded network's neuron layers by the scan operator: the same spikes, and the bits that the scan notes of them."""

from __future__ import annotations

from torch import Tensor

from steadyspike.deploy.graph import Node
from steadyspike.deploy.ops import SPECS, initial_potential, lif
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.spikes.note import known_spikes


def scanned(node: Node, x: Tensor) -> Tensor:
    """`ops.lif` of a layer that emits spikes, by `lif_scan`: equal to the last bit; any other layer by `ops.lif`."""
    o = node.options
    if o["emit"] != "spikes":
        return lif(node, x)
    start = node.tensors["start"]
    start = start if start.ndim == 1 else initial_potential(node, x)
    spec = SPECS[o["reset"], o["strict"], o["decay_input"]]
    return lif_scan(x, start, node.tensors["threshold"], node.tensors["leak"], spec).out


def step_sums(value: Tensor, timed: bool) -> list[float]:
    """The sum of every time step; one sum for a value without time. Noted spikes are counted from their bits."""
    spikes = known_spikes(value) if timed else None
    if spikes is not None and spikes.level.numel() == 1 and spikes.level.item() == 1:
        return [float(count) for count in spikes.counts.tolist()]
    return (value if timed else value[None]).double().flatten(1).sum(1).tolist()

"""How large the integers of a layer can become, whatever fires: from that the C writer takes its types."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from steadyspike.deploy.standalone.program import Array, Edge, Synapse


def sum_range(constant: Array, terms: Iterable[Synapse | Edge]) -> tuple[float, float]:
    """Smallest and largest sum of a layer's terms, if every input takes its worst value."""
    low, high = float(constant.min()), float(constant.max())
    for term in terms:
        if isinstance(term, Synapse):
            below, above = _row_range(term)
        else:
            corners = [w * x for w in _extremes(term.weight) for x in (term.source.low, term.source.high)]
            below, above = min(corners), max(corners)
        low, high = low + below, high + above
    return low, high


def _row_range(synapse: Synapse) -> tuple[float, float]:
    low, high = synapse.source.low, synapse.source.high
    rows = synapse.rows
    per_group = rows.reshape(-1, synapse.groups, synapse.size[0] // synapse.groups, rows.shape[1])
    smallest = np.minimum(per_group * low, per_group * high).sum((0, 2)).min()
    largest = np.maximum(per_group * low, per_group * high).sum((0, 2)).max()
    return float(smallest), float(largest)


def _extremes(weight: Array | None) -> tuple[float, float]:
    return (1.0, 1.0) if weight is None else (float(weight.min()), float(weight.max()))

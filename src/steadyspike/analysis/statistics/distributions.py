"""Distributions per time step, and the total variation distance between them.

All steps of a layer share their bins. 101 bins cover [-2V, 2V], so that 0, to which a hard reset sets all neurons that
fire, is inside a bin. Two more bins hold values outside. Binning can only decrease the distance, and too few samples
increase it, so compare every distance with a noise floor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BINS = 101


def threshold_edges(threshold: float, reach: float = 2.0, bins: int = BINS) -> Tensor:
    """Returns edges of ``bins`` equal bins on [-reach V, reach V], float64 [bins + 1].

    With an odd number, 0 is not an edge.
    """
    if bins % 2 == 0:
        raise ValueError(f"bins must be odd, so that 0 is inside a bin, got {bins}")
    return torch.linspace(-reach * threshold, reach * threshold, bins + 1, dtype=torch.float64)


def range_edges(values: Tensor, bins: int = BINS, outside: float = 0.001) -> Tensor:
    """Returns edges of equal bins between the quantiles ``outside`` and 1 - ``outside`` of all values, [bins + 1]."""
    flat = values.detach().double().flatten()
    flat = flat[:: max(1, len(flat) // 1_000_000)]  # torch.quantile takes at most 16 million numbers
    low, high = torch.quantile(flat, torch.tensor([outside, 1 - outside], dtype=torch.float64)).tolist()
    middle, half = (low + high) / 2, max((high - low) / 2, 1e-6)
    return torch.linspace(middle - half, middle + half, bins + 1, dtype=torch.float64)


def bin_counts(values: Tensor, edges: Tensor) -> Tensor:
    """Counts the values below the first edge, in each bin, and above the last edge: float64 [bins + 2]."""
    bins = torch.bucketize(values.detach().double().flatten(), edges, right=True)
    return torch.bincount(bins, minlength=len(edges) + 1).double()


def step_counts(x: Tensor, edges: Tensor, active: Tensor | None = None) -> Tensor:
    """`bin_counts` of every time step: x [T, B, ...], active [B, ...] (bool; None: all neurons) -> [T, bins + 2]."""
    return torch.stack([bin_counts(step if active is None else step[active], edges) for step in x])


def shares(counts: Tensor) -> Tensor:
    """Returns counts as probabilities over the last axis; all 0 if nothing was counted."""
    return counts / counts.sum(-1, keepdim=True).clamp_min(1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Returns TV(p, q) = 1/2 sum |p - q| over the last axis; p and q are probabilities on common bins."""
    return (p - q).abs().sum(-1) / 2


def noise_floor(p: Tensor, count: float, other: float | None = None) -> Tensor:
    """The expected TV between two independent samples of ``count`` and ``other`` values from the distribution p.

    Every bin's share is nearly Gaussian, so E|difference| = sqrt(2/pi) sd. For equal counts n this is sqrt(1/(pi n))
    sum sqrt(p). For values that are not independent (neurons of one image), use `half_split_floor`.
    """
    other = count if other is None else other
    if min(count, other) <= 0:
        return torch.full(p.shape[:-1], math.nan, dtype=p.dtype)
    deviation = (p * (1 - p) * (1 / count + 1 / other)).sqrt()
    return deviation.sum(-1) * math.sqrt(2 / math.pi) / 2


def half_split_floor(x: Tensor, edges: Tensor, active: Tensor | None = None) -> Tensor:
    """Returns the floor measured in the data: TV between the even and the odd samples of the same step, [T].

    x [T, B, ...]. Samples are split in halves, not neurons, because the neurons of one image depend on each other. The
    halves are noisier than the whole by sqrt(2), so the result is divided by sqrt(2).
    """
    parts = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        parts.append(shares(step_counts(x[:, half], edges, None if active is None else active[half])))
    return total_variation(*parts) / math.sqrt(2)


def active_neurons(spikes: Tensor) -> Tensor:
    """Returns which neurons fired at least once in the window: spikes [T, B, ...] -> bool [B, ...]."""
    return (spikes > 0).any(0)


def bounded_share(u: Tensor, threshold: float, factor: float = 1.0, active: Tensor | None = None) -> Tensor:
    """Returns the share of potentials within +- factor V at every step (Assumption 1): u [T, B, ...] -> [T]."""
    inside = u.detach().abs() <= factor * threshold
    return torch.stack([(step if active is None else step[active]).double().mean() for step in inside])


def against_last(p: Tensor) -> Tensor:
    """Returns the TV of every step's distribution from the last step's: p [T, bins] -> [T]; the last is 0."""
    return total_variation(p, p[-1])

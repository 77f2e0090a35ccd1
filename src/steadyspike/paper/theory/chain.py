"""The membrane potential of a LIF neuron with i.i.d. input as a Markov chain on a grid.

    M = (1 - 1/tau) U + I / tau,    U' = M if M < V, else M - V (soft reset) or 0 (hard reset)

The chain of theorem 1. The transition kernel is computed from the distribution function of the input, so it has no
sampling noise. The only error is the width of the cells. A hard reset puts probability exactly at 0, which is in the
middle of a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Cdf = Callable[[Tensor], Tensor]


def gaussian(mean: float = 0.0, std: float = 1.0) -> Cdf:
    """Returns the distribution function of a Gaussian input."""
    if not std > 0:
        raise ValueError(f"std must be above 0, got {std}")
    return lambda x: torch.special.ndtr((x - mean) / std)


def empirical(samples: Tensor) -> Cdf:
    """Returns the distribution function of measured inputs, linear between their quantiles."""
    points = samples.detach().double().flatten().sort().values
    grid = torch.linspace(0, len(points) - 1, min(len(points), 4001)).round().long()
    values, levels = points[grid], (grid.double() + 0.5) / len(points)

    def cdf(x: Tensor) -> Tensor:
        index = torch.searchsorted(values, x.contiguous()).clamp(1, len(values) - 1)
        low, high = values[index - 1], values[index]
        share = ((x - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        inside = levels[index - 1] + share * (levels[index] - levels[index - 1])
        return torch.where(x < values[0], 0.0, torch.where(x > values[-1], 1.0, inside))

    return cdf


@dataclass(frozen=True)
class Chain:
    """silent, firing: [n, n], probabilities of moving from cell i to cell j without and with a spike
    centres: [n]
    """

    centres: Tensor
    silent: Tensor
    firing: Tensor

    @property
    def kernel(self) -> Tensor:
        """Returns P[i, j]; every row sums to 1."""
        return self.silent + self.firing

    @property
    def rate(self) -> Tensor:
        """Returns the probability of a spike from every cell, [n]."""
        return self.firing.sum(1)

    def start(self, value: float) -> Tensor:
        """All probability at one potential, shared by the two cells around it so that its mean is exact, [n]."""
        width = float(self.centres[1] - self.centres[0])
        position = min(max((value - float(self.centres[0])) / width, 0.0), len(self.centres) - 1.000001)
        p = torch.zeros_like(self.centres)
        p[int(position)], p[int(position) + 1] = 1 - position % 1, position % 1
        return p

    def mean(self, p: Tensor) -> float:
        return float(p @ self.centres)


def membrane_chain(
    cdf: Cdf, threshold: float = 1.0, tau: float = 2.0, reset: str = "soft", low: float | None = None, cells: int = 401
) -> Chain:
    """Returns the chain of a neuron with this input.

    low: the lowest potential of the grid; default -3 V, or lower if the input's 0.01 % quantile leads there. Lower
    potentials are counted in the lowest cell. After a soft reset, a potential above V can remain; the grid ends at 3 V.
    """
    if not 0 < threshold < math.inf or not 1 <= tau < math.inf:
        raise ValueError(f"threshold must be above 0 and tau at least 1, both finite; got {threshold} and {tau}")
    a = 1 / tau
    if low is None:
        low = min(-threshold, _quantile(cdf, 1e-4))
    high = (
        threshold if reset == "hard" else max(threshold, _quantile(cdf, 1 - 1e-4) * a + (1 - a) * threshold - threshold)
    )
    # 0 is the centre of a cell, for the atom of a hard reset.
    width = (high - low) / cells
    below, above = int(-low / width) + 1, int(high / width) + 1
    centres = torch.arange(-below, above + 1, dtype=torch.float64) * width
    edges = torch.cat([centres - width / 2, centres[-1:] + width / 2])
    edges[0], edges[-1] = -torch.inf, torch.inf
    u = centres[:, None]

    def below_potential(m: Tensor) -> Tensor:
        """Returns P(M <= m | U = u) for every u (rows) and m (columns)."""
        return cdf(((m[None, :] - (1 - a) * u) / a).clamp(-1e12, 1e12))

    silent = below_potential(edges.clamp_max(threshold)).diff(dim=1).clamp_min(0)
    if reset == "soft":
        firing = below_potential((edges + threshold).clamp_min(threshold)).diff(dim=1).clamp_min(0)
    elif reset == "hard":
        firing = torch.zeros_like(silent)
        firing[:, below] = 1 - below_potential(torch.tensor([threshold], dtype=torch.float64))[:, 0]
    else:
        raise ValueError(f"unknown reset {reset!r}; known: soft, hard")
    return Chain(centres, silent, firing)


def _quantile(cdf: Cdf, level: float) -> float:
    """By bisection."""
    low, high = -1e3, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        if float(cdf(torch.tensor([middle], dtype=torch.float64))) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def stationary(chain: Chain) -> Tensor:
    """Returns pi with pi P = pi and sum 1, [n], by a linear solve."""
    n = len(chain.centres)
    system = chain.kernel.T - torch.eye(n, dtype=torch.float64)
    system[-1] = 1.0
    right = torch.zeros(n, dtype=torch.float64)
    right[-1] = 1.0
    try:
        pi = torch.linalg.solve(system, right).clamp_min(0)
    except torch.linalg.LinAlgError:
        raise ValueError(
            "the potential does not move on this grid: tau is too large for the width of its cells; use more cells"
        ) from None
    return pi / pi.sum()


def evolve(chain: Chain, p: Tensor, steps: int) -> Tensor:
    """Returns the distributions at t = 0..steps, starting with ``p``: [steps + 1, n]."""
    rows, kernel = [p], chain.kernel
    for _ in range(steps):
        rows.append(rows[-1] @ kernel)
    return torch.stack(rows)


def doeblin(chain: Chain, steps: int = 1) -> float:
    """Returns the largest epsilon with P^steps(x, .) >= epsilon mu(.) for all x and some mu: sum_j min_i P^steps[i, j].

    Its bound is TV(U[t], pi) <= (1 - epsilon)^(t / steps) for any start (theorem 1, step 4).
    """
    return float(torch.linalg.matrix_power(chain.kernel, steps).amin(0).sum())


def second_eigenvalue(chain: Chain) -> float:
    """Returns the rate at which the distance finally decreases: the modulus of the second largest eigenvalue."""
    values = torch.linalg.eigvals(chain.kernel).abs().sort(descending=True).values
    return float(values[1])

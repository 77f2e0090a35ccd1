"""Which constant to start from: lemma 1, and the distance of MP-Init's estimate from the stationary mean."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.analysis.statistics.distributions import total_variation
from steadyspike.paper.theory.chain import Chain, evolve, stationary


class Window(NamedTuple):
    """A window of T steps.

    p: the distributions at t = 0..T
    silent: the distributions of neurons that have not fired yet
    """

    p: Tensor
    silent: Tensor


def window(chain: Chain, start: Tensor, steps: int) -> Window:
    """Returns distributions of all neurons and of those that have not fired yet (unnormalised), [T + 1, n] each."""
    rows = [start]
    for _ in range(steps):
        rows.append(rows[-1] @ chain.silent)
    return Window(evolve(chain, start, steps), torch.stack(rows))


def active_mean(chain: Chain, start: Tensor, steps: int) -> float:
    """Returns E[U[T] | the neuron fired in the window], the value that MP-Init averages (algorithm 1)."""
    distribution = window(chain, start, steps)
    fired = distribution.p[-1] - distribution.silent[-1]
    return float(fired @ chain.centres) / max(float(fired.sum()), 1e-300)


def mp_init_fixed_point(chain: Chain, steps: int, rounds: int = 200) -> float:
    """Returns the limit of MP-Init's running mean: the c with c = E[U[T] | fired, U[0] = c], iterated from c = 0."""
    c = 0.0
    for _ in range(rounds):
        c = c + 0.5 * (active_mean(chain, chain.start(c), steps) - c)
    return c


def squared_distance(chain: Chain, pi: Tensor, constants: Tensor) -> Tensor:
    """Returns E[(pi - c)^2] for every constant c (lemma 1)."""
    return ((chain.centres[None, :] - constants[:, None]).square() * pi).sum(1)


def distances(chain: Chain, start: Tensor, steps: int) -> Tensor:
    """Returns TV(U[t], pi) at t = 0..steps."""
    return total_variation(evolve(chain, start, steps), stationary(chain))


def drift(chain: Chain, start: Tensor, steps: int) -> float:
    """Returns the mean over t = 1..steps of TV(U[t], pi): the effect of a start on a network."""
    return float(distances(chain, start, steps)[1:].mean())


def rate_bias(chain: Chain, start: Tensor, steps: int) -> Tensor:
    """The firing rate at t = 1..steps relative to the stationary one, minus 1: the shift in the next layer's input."""
    rates = evolve(chain, start, steps - 1) @ chain.rate
    return rates / (stationary(chain) @ chain.rate) - 1


def best_constant(chain: Chain, steps: int, points: int = 81) -> tuple[float, float]:
    """(c, drift): the constant start with the smallest `drift`, which need not be the mean that lemma 1 gives."""
    pi = stationary(chain)
    reach = chain.centres[(pi.cumsum(0) > 1e-3) & (pi.cumsum(0) < 1 - 1e-3)]
    candidates = torch.linspace(float(reach[0]), float(reach[-1]), points, dtype=torch.float64).tolist()
    return min(((c, drift(chain, chain.start(c), steps)) for c in candidates), key=lambda pair: pair[1])

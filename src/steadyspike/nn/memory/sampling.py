"""Checks, for a sample of elements, that a current is still the sum of its terms.

Autograd notices changes in place, but not those that bypass it (``x.data.mul_(2)``, a numpy array on the same memory).
The sample contains every channel and every time step several times, so that a change of a whole tensor, channel, time
step, sample or row is found.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.nn.memory.current import Term

SAMPLES = 2048  # at least this many; more if there are many channels or steps
PLACES = 16  # allowed difference in units of the last place: norms round differently on different devices


def _coordinates(shape: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """Coordinates of sampled elements of [T, B, C, ...]: all steps and channels in turn, the other axes at random."""
    steps, _, channels, *_ = shape
    count = max(SAMPLES, 4 * channels, 4 * steps)
    generator = torch.Generator().manual_seed(0)
    where = [torch.randint(size, (count,), generator=generator, device="cpu") for size in shape]
    where[2] = torch.arange(count, device="cpu") % channels
    where[0] = (
        torch.arange(count, device="cpu") // channels % steps
        if count >= channels * steps
        else torch.arange(count, device="cpu") % steps
    )
    return tuple(axis.to(device) for axis in where)


@torch.no_grad()
def is_sum(x: Tensor, terms: tuple[Term, ...]) -> bool:
    """True if ``x`` [T, B, C, ...] equals the sum of ``terms`` at the sampled elements, up to rounding."""
    where = _coordinates(x.shape, x.device)
    value, bound = terms[0].at(where)
    for term in terms[1:]:
        more, size = term.at(where)
        value, bound = value + more, bound + size
    seen = x[where]
    near = (seen - value).abs() <= PLACES * torch.finfo(x.dtype).eps * bound
    return bool((near | (seen == value) | (seen.isnan() & value.isnan())).all())

"""The spikes of a scan's output as bits, which the C++ forward writes together with the output."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SpikeWords(NamedTuple):
    """Memory for the bits of one forward of x [T, B, ...] with n elements per time step, in the memory order of out[t].

    Only for plans with ``bits``: the fast path, with n a multiple of 64.

    bits: int64 [T, n / 64]. Element i of a step is bit i % 64 of word i // 64, which is 1 if the output is a spike
    needed: the same shape. A bit is 1 if the backward may use the gradient of the output: at spikes, and at potentials
    for which the surrogate's derivative may differ from 0 (everywhere, for a surrogate without a window). None: not
    requested.
    counts: int64 [T + 1]; spikes per step, and at the end 1 if the bits are not valid. This happens if an output is
        NaN or V is not a finite number above 0, because another path then computes the block.
    """

    bits: Tensor
    needed: Tensor | None
    counts: Tensor

    @classmethod
    def like(cls, x: Tensor, needed: bool = False) -> SpikeWords:
        """Allocates words for the forward of ``x``, which fills them."""
        steps = x.shape[0]
        bits = x.new_empty((steps, x.numel() // (64 * steps)), dtype=torch.int64)
        return cls(bits, torch.empty_like(bits) if needed else None, bits.new_empty(steps + 1))

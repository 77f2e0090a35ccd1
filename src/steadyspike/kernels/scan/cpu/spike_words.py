"""The spikes of a scan's output as bits, which the C++ forward writes together with the output."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SpikeWords(NamedTuple):
    """Memory for the bits of one forward of x [T, B, ...] with n elements per time step, in the memory order of out[t].

    bits: int64 [T, ceil(n / 64)]. Element i of a step is bit i % 64 of word i // 64, which is 1 if the output is a
        spike. Bits after the last element are 0.
    needed: the same shape. A bit is 1 if the backward may use the gradient of the output: at spikes, and at potentials
    for which the surrogate's derivative may differ from 0 (everywhere, for a surrogate without a window). None: not
    requested.
    counts: int64 [T + 1]; spikes per step, and at the end 1 if an output is NaN (a NaN is not a spike and has no bit)
    """

    bits: Tensor
    needed: Tensor | None
    counts: Tensor

    @classmethod
    def like(cls, x: Tensor, needed: bool = False) -> SpikeWords:
        """Allocates words for the forward of ``x``, which fills them. Without elements there is nothing to fill."""
        steps = x.shape[0]
        words = -(-x.numel() // (64 * steps))
        bits = x.new_empty((steps, words), dtype=torch.int64)
        counts = (x.new_empty if words else x.new_zeros)(steps + 1, dtype=torch.int64)
        return cls(bits, torch.empty_like(bits) if needed else None, counts)

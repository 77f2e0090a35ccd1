"""`PackedSpikes`: the only representation of spikes besides the tensor: one bit per neuron and step, and a level.

Bits are made from values and checked value by value. They are therefore right after every change of the tensor, also
after changes that autograd does not count (``x.data``, numpy, inference tensors).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel
from steadyspike.kernels.layout import is_dense
from steadyspike.kernels.sizes_only import has_no_values, sizes_only
from steadyspike.kernels.spikes.words import can_pack, count_words, first_level, pack_words, unpack_words

_GATHER = 0x0102040810204080  # multiplies eight bytes of 0 or 1, so that the highest byte contains all their bits


@dataclass(eq=False)
class PackedSpikes:
    """Spikes [T, B, C, ...]: each element is 0 or its channel's level.

    words: int64 [T, ceil(n / 64)] for n elements per step: bit i % 64 of word i / 64 is element i in memory order
    level: [1] or [C]
    shape, stride: of the tensor; every step is one dense block
    counted: spikes per step, int64 [T or more], if the scan has counted them
    """

    words: Tensor
    level: Tensor
    shape: torch.Size
    stride: tuple[int, ...]
    counted: Tensor | None = None

    @property
    def size(self) -> int:
        """Returns the number of elements per step."""
        return self.shape[1:].numel()

    @cached_property
    def counts(self) -> Tensor:
        """Returns the spikes per step, int64 [T]."""
        if self.counted is not None:
            return self.counted[: self.shape[0]]
        if can_pack(self.words):
            return count_words(self.words)
        table = _bytes_to_bits(self.words.device).sum(1)
        return table[self.words.view(torch.uint8).int()].sum(1)

    @cached_property
    def total(self) -> int:
        """Returns the number of all spikes, or how many a memory estimate assumes."""
        assumed = sizes_only(self.words)
        return int(self.counts.sum()) if assumed is None else round(self.shape.numel() * assumed.firing_rate)

    @property
    def rate(self) -> float:
        """Returns the share of elements that are spikes."""
        return self.total / max(1, self.shape.numel())

    def unpack(self) -> Tensor:
        """Returns the tensor again, with its strides inside of a step and time outermost."""
        return self.block().as_strided(self.shape, (self.size, *self.stride[1:]))

    def block(self) -> Tensor:
        """Returns the values in memory order, [T, n]."""
        if can_pack(self.level):
            return unpack_words(self.words, self.size, self.level, elements_per_channel(self.shape, self.stride))
        table = _bytes_to_bits(self.words.device).to(self.level.dtype)
        if self.level.numel() == 1:
            table = table * self.level
        flat = table.index_select(0, self.words.view(torch.uint8).flatten().int()).view(self.shape[0], -1)
        flat = flat[:, : self.size].contiguous()
        if self.level.numel() > 1:
            strided = flat.as_strided(self.shape, (self.size, *self.stride[1:]))
            strided.mul_(per_channel(self.level, len(self.shape) - 1))
        return flat


def _bytes_to_bits(device: torch.device) -> Tensor:
    """Returns a table [256, 8] of 0 and 1: row b has the eight bits of the byte b, lowest first."""
    return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1


def elements_per_channel(shape: torch.Size, stride: tuple[int, ...]) -> int:
    """Returns the distance in memory from a channel to the next."""
    return stride[2] if len(shape) > 2 and shape[2] > 1 else max(1, shape[1:].numel())


def pack_spikes(x: Tensor, level: Tensor | None = None) -> PackedSpikes | None:
    """Returns ``x`` [T, B, C, ...] as bits if every element is 0 or ``level`` ([1] or [C], no zeros), otherwise None.

    Returns None also for a tensor without values (`sizes_only`).
    If level is None, the nonzero elements may have any value above 0 that is the same for all, or for all of a channel.
    """
    if has_no_values(x) or x.numel() == 0:
        return None
    if not is_dense(x[0]) or (x.shape[0] > 1 and x.stride(0) != x[0].numel()):
        return None
    x = x.detach()
    if level is not None:
        return _pack(x, level)
    one = first_level(_rows(x)) if can_pack(x) else _or_one(x.amax().view(1))
    spikes = _pack(x, one)
    if spikes is not None or x.ndim < 3 or x.shape[2] < 2 or not bool(torch.isfinite(one)):
        return spikes
    levels = _level_per_channel(x)
    return None if levels is None else _pack(x, levels)


def _rows(x: Tensor) -> Tensor:
    """Returns [T, n] in memory order."""
    n = x[0].numel()
    return x.as_strided((x.shape[0], n), (n, 1))


def _or_one(level: Tensor) -> Tensor:
    """If nothing fires, any level is valid."""
    return torch.where(level == 0, torch.ones_like(level), level)


def _level_per_channel(x: Tensor) -> Tensor | None:
    """Returns the largest value of each channel of ``x`` [T, B, C, ...]; None if the first sample has other values."""
    axes = [axis for axis in range(x.ndim) if axis != 2]
    sample = x[:1, :1]
    level = per_channel(sample.amax(axes), x.ndim - 1)
    return _or_one(x.amax(axes)) if bool(((sample == 0) | (sample == level)).all()) else None


def _pack(x: Tensor, level: Tensor) -> PackedSpikes | None:
    # A convolution can only add up weights times a finite level.
    if not bool(torch.isfinite(level).all()):
        return None
    rows = _rows(x)
    if can_pack(x):
        words = pack_words(rows, level, elements_per_channel(x.shape, x.stride()))
        return None if words is None else PackedSpikes(words, level, x.shape, x.stride())
    fired = x == per_channel(level, x.ndim - 1)
    if not torch.equal(fired, x != 0):
        return None
    flat = torch.nn.functional.pad(_rows(fired), (0, -rows.shape[1] % 64)).contiguous()
    packed = ((flat.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)
    return PackedSpikes(packed.view(torch.int64), level, x.shape, x.stride())

"""Spikes as bits: a tensor of zeros and one other value (per channel) in a 32nd of its memory, and back, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.core.lif import per_channel
from steadyspike.core.torch_private import FakeTensor
from steadyspike.kernels.layout import is_dense
from steadyspike.kernels.spikes.words import can_pack, pack_words, unpack_words

_GATHER = 0x0102040810204080  # eight bytes of 0 or 1, times this: their bits side by side in the highest byte


def _bytes_to_bits(device: torch.device) -> Tensor:
    """Row b: the eight bits of the byte b, lowest first, [256, 8] of 0 and 1."""
    return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1


class Bits:
    """The values of one dense block of memory, each 0 or its channel's level.

    packed: uint8, bit i of the block in byte i // 8, lowest first, filled up to a multiple of 64 bits.
    level: [1] or [C]; shape, stride: the [T, B, C, ...] view of the block by which a channel is found.
    """

    def __init__(self, packed: Tensor, level: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> None:
        self.packed, self.level, self.shape, self.stride = packed, level, shape, stride

    def block(self) -> Tensor:
        """The values again, [n] in memory order."""
        n = self.shape.numel()
        if can_pack(self.level) and not isinstance(self.packed, FakeTensor):
            return unpack_words(self.packed.view(torch.int64), n, self.level, _inner(self.shape, self.stride))
        table = _bytes_to_bits(self.packed.device).to(self.level.dtype)
        if self.level.numel() == 1:
            table = table * self.level
        flat = table.index_select(0, self.packed.int()).view(-1)[:n]
        if self.level.numel() > 1:
            flat.as_strided(self.shape, self.stride).mul_(per_channel(self.level, len(self.shape) - 1))
        return flat


def _inner(shape: torch.Size, stride: tuple[int, ...]) -> int:
    """Elements between a channel and the next."""
    return stride[2] if len(shape) > 2 and shape[2] > 1 else max(1, shape.numel())


def pack(x: Tensor, level: Tensor) -> Bits | None:
    """``x`` [T, B, C, ...] as bits if every element is 0 or ``level`` ([1] or [C], no zeros), else None."""
    if x.numel() == 0 or not is_dense(x):
        return None
    if can_pack(x):
        words = pack_words(x, level, _inner(x.shape, x.stride()))
        return None if words is None else Bits(words.view(torch.uint8), level, x.shape, x.stride())
    fired = x == per_channel(level, x.ndim - 1)
    if not torch.equal(fired, x != 0):
        return None
    flat = fired.as_strided((x.numel(),), (1,))
    if spare := -x.numel() % 64:
        flat = torch.cat([flat, flat.new_zeros(spare)])
    packed = ((flat.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)
    return Bits(packed, level, x.shape, x.stride())

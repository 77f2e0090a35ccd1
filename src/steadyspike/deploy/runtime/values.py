"""The values between the steps of a runtime: spikes as bits, or numbers.

Numbers are tensors as in `deploy.ops`: [T, B, *shape], or [B, *shape] for values that are the same at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from steadyspike.deploy.runtime.native_layer import window_means, words_for
from steadyspike.kernels.spikes.words import count_words

Shape = tuple[int, ...]


def as_image(shape: Shape) -> tuple[int, int, int]:
    """Returns a sample's shape [C, ...] as channels, rows and columns; pixels keep their order."""
    if len(shape) <= 2:
        return shape[0], math.prod(shape[1:]), 1
    return shape[0], math.prod(shape[1:-1]), shape[-1]


@dataclass(frozen=True)
class Bits:
    """Spikes of samples of ``shape`` [C, ...].

    words: int64 [B, T, rows, columns, ceil(C / 64)], see `as_image`

    count: the number of spikes; None if they were not counted yet
    """

    words: Tensor
    shape: Shape
    count: int | None = None

    def viewed(self, shape: Shape) -> Bits:
        """Returns the same spikes for a shape with the same channels and the same number of pixels."""
        channels, rows, columns = as_image(shape)
        assert channels == self.shape[0]
        return Bits(self.words.view(*self.words.shape[:2], rows, columns, words_for(channels)), shape, self.count)

    @cached_property
    def counted(self) -> int:
        """Returns the number of spikes."""
        if self.count is not None:
            return self.count
        return int(count_words(self.words.view(1, -1)))

    @property
    def rate(self) -> float:
        """Returns the share of neurons and steps that fire."""
        return self.counted / max(1, self.words.shape[0] * self.words.shape[1] * math.prod(self.shape))

    @cached_property
    def numbers(self) -> Tensor:
        """Returns float32 [T, B, *shape] of 0 and 1, channels innermost in memory."""
        return from_memory(window_means(self.words, self.shape[0]), self.shape)


Value = Bits | Tensor


def from_memory(numbers: Tensor, shape: Shape) -> Tensor:
    """Returns [B, T, rows, columns, C] as [T, B, *shape], without a copy."""
    samples, steps, _, _, channels = numbers.shape
    return numbers.view(samples, steps, *shape[1:], channels).movedim(-1, 2).transpose(0, 1)


def to_memory(numbers: Tensor) -> Tensor:
    """Returns [T, B, *shape] as [B, T, rows, columns, C]; copied only if its memory order differs."""
    channels, rows, columns = as_image(tuple(numbers.shape[2:]))
    last = numbers.transpose(0, 1).movedim(2, -1)
    if last.stride(1) == 0:  # one frame, repeated
        frame = last[:, :1].contiguous().view(last.shape[0], 1, rows, columns, channels)
        return frame.expand(-1, last.shape[1], -1, -1, -1)
    return last.contiguous().view(*last.shape[:2], rows, columns, channels)

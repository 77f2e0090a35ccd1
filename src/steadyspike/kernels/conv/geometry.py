"""Sizes and memory order of a convolution whose input is spikes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from math import prod

import torch
from torch import Tensor

from steadyspike.kernels.layout import KEPT_SHAPES

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvGeometry:
    """A convolution of ``steps`` x ``batch`` images [in_channels, height, width], all float32.

    channels_last: channels are innermost in memory, for input and output
    pixel_bits: from one pixel's bits to the next, in the bits of the input; 0: as many as there are channels
    """

    steps: int
    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    channels_last: bool = True
    pixel_bits: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @property
    def images(self) -> int:
        return self.steps * self.batch

    @cached_property
    def step_words(self) -> int:
        """Returns the number of words of a step's bits."""
        return -(-self.batch * (self.pixel_bits or self.in_channels) * self.height * self.width // 64)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def out_size(self) -> Pair:
        """Returns height and width of the output."""
        sizes = zip((self.height, self.width), self.padding, self.dilation, self.kernel, self.stride)
        rows, columns = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, p, d, k, s in sizes)
        return rows, columns

    @cached_property
    def has_outputs_of_padding(self) -> bool:
        """Returns True if some output reads only padding."""
        sizes = zip((self.height, self.width), self.out_size, self.padding, self.dilation, self.kernel, self.stride)
        return any(
            not any(0 <= out * s - p + d * tap < size for tap in range(k))
            for size, outs, p, d, k, s in sizes
            for out in range(outs)
        )

    @cached_property
    def has_full_input_gradient(self) -> bool:
        """Returns True if `conv_full_input_gradient` supports this geometry."""
        return self.channels_last and (self.kernel, self.stride, self.dilation) == ((3, 3), (1, 1), (1, 1))

    @cached_property
    def skips_pixels(self) -> bool:
        """Returns True if this is the 1x1 convolution without a stride of a part of the pixels, in channels_last."""
        alone = self.taps == 1 and self.padding == (0, 0)
        return alone and self.channels_last and self.stride != (1, 1)

    @cached_property
    def read_share(self) -> float:
        """Returns the share of the input's pixels that some output reads: not all if the stride is above the kernel."""
        return prod(min(1.0, ((k - 1) * d + 1) / s) for k, d, s in zip(self.kernel, self.dilation, self.stride))

    @cached_property
    def inputs(self) -> int:
        """Returns the number of elements of the input."""
        return self.images * self.in_channels * self.height * self.width

    @cached_property
    def work(self) -> int:
        """Returns the number of multiplications of the dense convolution."""
        rows, columns = self.out_size
        return self.images * rows * columns * self.taps * self.in_channels * self.out_channels

    def empty(self, channels: int, size: Pair) -> Tensor:
        """Allocates [images, channels, *size] in this memory order."""
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return torch.empty((self.images, channels, *size), memory_format=order, device="cpu")

    def empty_input(self) -> Tensor:
        return self.empty(self.in_channels, (self.height, self.width))

    def empty_output(self) -> Tensor:
        return self.empty(self.out_channels, self.out_size)

    @cached_property
    def out_strides(self) -> tuple[int, ...]:
        """Returns the strides of a tensor of `empty_output`."""
        (rows, columns), channels = self.out_size, self.out_channels
        if self.channels_last:
            return rows * columns * channels, 1, columns * channels, channels
        return channels * rows * columns, rows * columns, columns, 1

    def check_output(self, g: Tensor) -> None:
        """Raises an error for a gradient whose layout differs from the output's."""
        shape = (self.images, self.out_channels, *self.out_size)
        if g.shape != shape or any(s != r and n != 1 for s, r, n in zip(g.stride(), self.out_strides, shape)):
            raise ValueError(f"the gradient must have shape {list(shape)} and strides {self.out_strides}")

    def laid_out(self, g: Tensor) -> Tensor:
        """Returns ``g`` [images, channels, ...] in this memory order."""
        return g.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)


def conv_geometry(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, steps: int = 1
) -> ConvGeometry | None:
    """Returns the geometry of ``conv2d(x, weight)`` for x [steps * B, C, H, W].

    Returns None if x has neither of the two memory orders.
    """
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1] or x.numel() == 0 or weight.numel() == 0:
        return None
    planes, last = x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last)
    if not (planes or last):
        return None
    if planes and last:  # one channel or one pixel: the output has the layout that torch would choose
        last = weight.is_contiguous(memory_format=torch.channels_last)
    return _conv_geometry(steps, x.shape, weight.shape, tuple(stride), tuple(padding), tuple(dilation), last)


@lru_cache(maxsize=KEPT_SHAPES)
def _conv_geometry(
    steps: int, x: torch.Size, weight: torch.Size, stride: Pair, padding: Pair, dilation: Pair, last: bool
) -> ConvGeometry | None:
    """Returns the same object for the same numbers, so that derived values are computed once."""
    images, channels, height, width = x
    kernel = (weight[2], weight[3])
    geometry = ConvGeometry(
        steps, images // steps, channels, height, width, weight[0], kernel, stride, padding, dilation, last
    )
    return geometry if min(geometry.out_size) > 0 else None


def linear_geometry(x: Tensor, weight: Tensor) -> ConvGeometry | None:
    """The geometry of ``linear(x, weight)`` for contiguous x [..., features]: every row is a pixel of one image."""
    if x.ndim < 2 or x.numel() == 0 or weight.numel() == 0 or not x.is_contiguous() or x.shape[-1] != weight.shape[1]:
        return None
    return _linear_geometry(x.numel() // weight.shape[1], weight.shape[1], weight.shape[0])


@lru_cache(maxsize=KEPT_SHAPES)
def _linear_geometry(rows: int, features: int, outputs: int) -> ConvGeometry:
    return ConvGeometry(1, 1, features, 1, rows, outputs)

# mypy: allow-untyped-defs, allow-incomplete-defs
# Triton reads the annotations of a Triton function, so only those that it supports are used.
"""The Triton kernels that a batch norm in training adds to the scan: its moments, and the last step of its backward.

Both treat y [T, B, C, ...] as one block of memory [outer, channels, inner], including time.
"""

import triton
import triton.language as tl

from steadyspike.kernels.scan.triton.math import by_channel, tile, tile_at, tile_position


@triton.jit
def moments_kernel(
    y_ptr,
    partial_ptr,
    per_channel,
    channels,
    inner,
    rows,
    rounds,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes mean, sum of squared deviations from it and number of elements of ``rounds`` blocks.

    partial_ptr: [3, rows, channels], double

    The mean of the first block is subtracted from every element, so that large sums are never subtracted from each
    other.
    """
    row, c = tile_position(channels, WIDE, BLOCK_C)
    offsets, mask = tile_at(row * rounds, c, per_channel, channels, inner, BLOCK_C, BLOCK)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    n = tl.sum(mask.to(COMPUTE), axis=0)[None, :]
    # Deviations from the first block's mean are small, so their squares lose no digits in float32.
    center = tl.sum(y, axis=0)[None, :] / tl.maximum(n, 1.0)
    apart = tl.where(mask, y - center, 0.0)
    total = apart
    squares = apart * apart
    for i in range(1, rounds):
        offsets, mask = tile_at(row * rounds + i, c, per_channel, channels, inner, BLOCK_C, BLOCK)
        y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
        apart = tl.where(mask, y - center, 0.0)
        total += apart
        squares += apart * apart
        n += tl.sum(mask.to(COMPUTE), axis=0)[None, :]
    s = tl.sum(total.to(tl.float64), axis=0)[None, :]
    q = tl.sum(squares.to(tl.float64), axis=0)[None, :]
    n = n.to(tl.float64)
    # The mean is center + away; shifting the center changes the sum of squares by s * away.
    away = s / tl.maximum(n, 1.0)
    at = partial_ptr + row * channels + c
    inside = c < channels
    size = rows * channels
    tl.store(at, center.to(tl.float64) + away, mask=inside)
    tl.store(at + size, q - s * away, mask=inside)
    tl.store(at + 2 * size, n, mask=inside)


@triton.jit
def norm_gradient_kernel(
    g_ptr,
    y_ptr,
    slope_ptr,
    offset_ptr,
    dy_ptr,
    per_channel,
    channels,
    inner,
    WIDE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes dy = g + slope y + offset, with slope and offset [C] in the compute dtype."""
    offsets, mask, c, _ = tile(per_channel, channels, inner, WIDE, BLOCK_C, BLOCK)
    slope = by_channel(slope_ptr, c, channels, True)
    offset = by_channel(offset_ptr, c, channels, True)
    g = tl.load(g_ptr + offsets, mask=mask, other=0.0).to(slope.dtype)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(slope.dtype)
    tl.store(dy_ptr + offsets, (g + tl.fma(y, slope, offset)).to(dy_ptr.dtype.element_ty), mask=mask)

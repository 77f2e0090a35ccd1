"""Moments of a batch norm and the last step of its backward in Triton: launches, and the sums over programs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steadyspike.kernels.layout import compute_dtype
from steadyspike.kernels.scan.triton.launch import Launch, Tiles, block_of_channels

BLOCK = (2048, 8)  # elements and warps: 8 elements per thread are one 16-byte access in bfloat16
PROGRAMS = 1024  # at most about this many programs read y for the moments: a few per multiprocessor of every card


def whole_tiles(y: Tensor) -> Tiles:
    """Returns tiles of all steps of y [T, B, C, ...] together; y fills one block of memory."""
    channels = y.shape[2]
    if channels == 1:
        return Tiles(y.numel(), 1, 1, 1)
    return Tiles(y.numel() // channels, channels, y.stride(2), block_of_channels(channels, y.stride(2)))


def moments_launch(y: Tensor) -> tuple[Launch, Tensor]:
    """The kernel of the moments, and its results [3, rows, C]: mean, squared deviations and number per program."""
    from steadyspike.kernels.scan.triton.norm import moments_kernel

    tiles = whole_tiles(y)
    rounds = max(1, tiles.programs(BLOCK[0]) // PROGRAMS)
    rows = math.ceil(tiles.per_channel / (BLOCK[0] // tiles.block_c * rounds))
    partial = y.new_empty((3, rows, tiles.channels), dtype=torch.float64)
    arguments = {"y_ptr": y, "partial_ptr": partial, **_shape(tiles), "rows": rows, "rounds": rounds}
    arguments["COMPUTE"] = _triton_type(compute_dtype(y))
    return Launch(moments_kernel, tiles, arguments, (), rows * math.ceil(tiles.channels / tiles.block_c)), partial


def batch_moments(y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance [C] of y [T, B, C, ...] in the compute dtype; y fills one block of memory."""
    launch, partial = moments_launch(y)
    launch.run(y.device, BLOCK)
    means, squares, counts = partial
    mean = (means * counts).sum(0) / launch.tiles.per_channel
    # The squared deviations of all programs around one mean (Chan et al.).
    var = (squares + counts * (means - mean).square()).sum(0) / launch.tiles.per_channel
    return mean.to(compute_dtype(y)), var.to(compute_dtype(y))


def norm_gradient_launch(g: Tensor, y: Tensor, slope: Tensor, offset: Tensor, dy: Tensor) -> Launch:
    """Computes dy = g + slope y + offset; g, y and dy have the same layout, which fills one block."""
    from steadyspike.kernels.scan.triton.norm import norm_gradient_kernel

    tiles = whole_tiles(y)
    tensors = {"g_ptr": g, "y_ptr": y, "slope_ptr": slope, "offset_ptr": offset, "dy_ptr": dy}
    return Launch(norm_gradient_kernel, tiles, {**tensors, **_shape(tiles)}, ())


def _shape(tiles: Tiles) -> dict[str, object]:
    names = ("per_channel", "channels", "inner", "WIDE", "BLOCK_C")
    arguments = tiles.arguments()
    return {name: arguments[name] for name in names}


def _triton_type(dtype: torch.dtype) -> object:
    import triton.language as tl

    return tl.float64 if dtype == torch.float64 else tl.float32

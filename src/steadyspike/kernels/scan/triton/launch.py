"""How a scan is cut into Triton programs, and how a kernel is started: with tuning on a card, without it elsewhere.

This file does not import triton at the top: `steadyspike` works without it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from steadyspike.kernels.layout import channel_count

SLOT = 256  # elements per partial sum, and the smallest block; math.SLOT
# (block, warps) that the tuner tries. 4 elements per thread are one 16-byte access in float32, 8 in bfloat16.
CONFIGS = ((256, 2), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))
FIXED = (512, 4)
# Sizes for the backward of norm and neuron in channels_last, or with a shortcut over 8 steps. There 4 elements per
# thread need more than the 255 registers of a thread on sm_90 or sm_100.
FIXED_SMALL = (256, 4)
# Registers that the backward may use for a segment's x and U, per thread and element: 8 time steps of float32 or 4 of
# float64. docs/kernels-gpu.md lists what the fixed sizes above spill.
SEGMENT_BYTES = 64
# Passed with every launch because Triton's default is about to change. Nothing depends on it, because the one
# multiply-add that decides about spikes is written explicitly.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True)
class Tiles:
    """A step as [outer, channels, inner].

    ``per_channel`` = outer * inner positions; ``inner`` is the channel's stride.

    ``block_c`` channels share a program, and ``slots`` partial sums are kept per channel. ``wide``: use 64-bit offsets.
    """

    per_channel: int
    channels: int
    inner: int
    block_c: int

    @property
    def size(self) -> int:
        return self.per_channel * self.channels

    @property
    def slots(self) -> int:
        return math.ceil(self.per_channel / (SLOT // self.block_c))

    @property
    def wide(self) -> bool:
        # The last tile may reach past the end by a block.
        return self.size + CONFIGS[-1][0] * self.channels >= 2**31

    def programs(self, block: int) -> int:
        return math.ceil(self.per_channel / (block // self.block_c)) * math.ceil(self.channels / self.block_c)

    def arguments(self) -> dict[str, Any]:
        """Returns the kernel arguments that describe the tiling."""
        return {
            "step": self.size,
            "per_channel": self.per_channel,
            "channels": self.channels,
            "inner": self.inner,
            "slots": self.slots,
            # Tuning is repeated when the size doubles, not for every batch size.
            "size_class": self.size.bit_length(),
            "WIDE": self.wide,
            "BLOCK_C": self.block_c,
        }


def plan_tiles(x: Tensor, by_channel: bool) -> Tiles:
    """Returns tiles for x [T, B, C, ...]; if no parameter is per channel, a step is one flat row."""
    size = x[0].numel()
    channels = channel_count(x)
    if not by_channel or channels == 1:
        return Tiles(size, 1, 1, 1)
    inner = x.stride(2)
    return Tiles(size // channels, channels, inner, block_of_channels(channels, inner))


def block_of_channels(channels: int, inner: int) -> int:
    """Returns how many channels share a program.

    Positions of one channel are ``inner`` consecutive elements. If those are too few to fill a memory transaction, a
    program takes several channels instead (channels_last and [T, B, C]: inner == 1).
    """
    return 1 if inner >= 16 else min(32, 1 << (channels - 1).bit_length())


def plan_segments(timesteps: int, dtype: torch.dtype) -> tuple[int, int]:
    """(number of segments, steps in each) for the backward: as equal as possible, with x and U in `SEGMENT_BYTES`."""
    segments = math.ceil(timesteps * 2 * dtype.itemsize / SEGMENT_BYTES)
    return segments, math.ceil(timesteps / segments)


def interpreting() -> bool:
    """Whether Triton runs its kernels in its Python interpreter (TRITON_INTERPRET=1), which takes CPU tensors."""
    import triton

    from steadyspike.kernels.scan.triton.forward import forward_kernel

    return not isinstance(forward_kernel, triton.JITFunction)


@cache
def _tuned(kernel: Any, key: tuple[str, ...]) -> Any:
    import triton

    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in CONFIGS]
    return triton.autotune(configs=configs, key=list(key))(kernel)


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments but the block size, and the names of the arguments on which the tuning depends.

    programs: how many run; None for one per tile
    fixed: the (block, warps) that are used without tuning
    """

    kernel: Any
    tiles: Tiles
    arguments: dict[str, Any]
    tuning_key: tuple[str, ...]
    programs: int | None = None
    fixed: tuple[int, int] = FIXED

    def run(self, device: torch.device, fixed: tuple[int, int] | None = None) -> None:
        """Starts it on ``device``, with a tuned block size or with the given (block, warps).

        In two cases ``self.fixed`` is used: the interpreter has nothing to tune, and with
        `torch.use_deterministic_algorithms` the order of summation must not depend on a timing.
        """
        if fixed is None and (interpreting() or torch.are_deterministic_algorithms_enabled()):
            fixed = self.fixed
        on_device: Callable[..., contextlib.AbstractContextManager[Any]]
        on_device = torch.cuda.device if device.type == "cuda" else contextlib.nullcontext
        with on_device(device):
            if fixed is None:
                grid = lambda meta: (self.tiles.programs(meta["BLOCK"]),)  # noqa: E731
                _tuned(self.kernel, self.tuning_key)[grid](**self.arguments, **OPTIONS)
            else:
                block, warps = fixed
                programs = self.programs or self.tiles.programs(block)
                self.kernel[(programs,)](**self.arguments, BLOCK=block, num_warps=warps, **OPTIONS)

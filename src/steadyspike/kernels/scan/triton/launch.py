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
# For the backward over more than 5 steps, or if a program has several channels: with 4 elements per thread it would
# need so many registers that few threads run at a time.
FIXED_SMALL = (256, 4)
# Registers that the backward may use for a segment's x and U, per thread and element: 8 time steps of float32 or 4 of
# float64.
SEGMENT_BYTES = 64
# What the backward keeps of an element over 1 to 8 steps, in words of 4 bytes: without and with an extra current. These
# are the smallest numbers, with a little room, with which `register_limit` leads to no spill on any of five GPUs.
BACKWARD_WORDS = ((6, 10, 14, 18, 22, 30, 36, 48), (6, 12, 18, 22, 28, 36, 42, 50))
# Of an NVIDIA multiprocessor, and at most of one of its threads.
REGISTERS, MOST = 65536, 255
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


def register_need(words: float, block: int, warps: int) -> int:
    """Returns at most how many registers a thread of a kernel needs that keeps ``words`` of 4 bytes per element.

    It is rounded up to a multiple of 8, in which a card hands them out.
    """
    return math.ceil((40 + words * block / (32 * warps)) / 8) * 8


def register_limit(words: float, block: int, warps: int) -> int:
    """Returns how many registers a thread may use.

    Without a limit NVIDIA's assembler spills a register or two if one more block can then run at a time. It does not
    with one. With this one as many blocks run at a time as with what the kernel needs.
    """
    blocks = max(1, REGISTERS // (32 * warps * register_need(words, block, warps)))
    return min(MOST, REGISTERS // (32 * warps * blocks) // 8 * 8)


def sizes_to_try(words: float | None) -> list[tuple[int, int]]:
    """Returns the `CONFIGS` for a kernel; one that needs more registers than a thread can have would spill."""
    return [size for size in CONFIGS if words is None or register_need(words, *size) <= 256]


@cache
def _tuned(kernel: Any, key: tuple[str, ...], words: float | None) -> Any:
    import triton

    configs = [
        triton.Config({"BLOCK": block}, num_warps=warps, **_limit(words, block, warps))
        for block, warps in sizes_to_try(words)
    ]
    return triton.autotune(configs=configs, key=list(key))(kernel)


def _limit(words: float | None, block: int, warps: int) -> dict[str, int]:
    """Returns the limit of registers as an option of a launch; AMD's compiler has no such option."""
    if words is None or torch.version.hip is not None:
        return {}
    return {"maxnreg": register_limit(words, block, warps)}


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments but the block size, and the names of the arguments on which the tuning depends.

    programs: how many run; None for one per tile
    fixed: the (block, warps) that are used without tuning
    words: what is live at a time, in words of 4 bytes per element; see `register_limit`. None: no limit of registers
    """

    kernel: Any
    tiles: Tiles
    arguments: dict[str, Any]
    tuning_key: tuple[str, ...]
    programs: int | None = None
    fixed: tuple[int, int] = FIXED
    words: float | None = None

    def options(self, block: int, warps: int) -> dict[str, Any]:
        """Returns everything but the arguments that a launch with this size is compiled with."""
        return {"BLOCK": block, "num_warps": warps, **OPTIONS, **_limit(self.words, block, warps)}

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
                _tuned(self.kernel, self.tuning_key, self.words)[grid](**self.arguments, **OPTIONS)
            else:
                block, warps = fixed
                programs = self.programs or self.tiles.programs(block)
                self.kernel[(programs,)](**self.arguments, **self.options(block, warps))

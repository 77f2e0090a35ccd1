"""Two passes of a batch norm's backward in C++ (csrc/norm/input_gradient.cpp): the sums, and the last step."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library
from steadyspike.kernels.sizes_only import has_no_values

FUNCTIONS = _NAME, _SUMS = "steadyspike_norm_input_gradient", "steadyspike_norm_sums"


_int, _pointer = ctypes.c_int64, ctypes.c_void_p
_SIZES = (_int,) * 4
NORM = struct.Struct("6P")  # ``Norm``: the sums, mean, 1 / sd, scale, and the gradients of weight and bias


@cache
def _library() -> ctypes.CDLL:
    library = load_library(FUNCTIONS)
    if isinstance(library, str):
        raise RuntimeError(library)
    getattr(library, _NAME).argtypes = (*(_pointer,) * 3, *_SIZES, ctypes.c_char_p, _int)
    getattr(library, _SUMS).argtypes = (*(_pointer,) * 4, *_SIZES)
    return library


def norm_input_gradient(
    g: Tensor, y: Tensor, sums: Tensor, mean: Tensor, invstd: Tensor, scale: Tensor, *, reuse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of the input ``y``, in the memory of ``g`` if ``reuse``, of the weight and of the bias.

    g, y: [T, B, C, ...] with equal strides that fill one block of memory, float32 or float64
    sums: float64 [2, C], of g and of g (y - mean)
    mean, invstd, scale: [C]; scale is weight times invstd
    """
    dy = g if reuse else torch.empty_like(g)
    channels = y.shape[2]
    inner = y.stride(2) if channels > 1 else y.numel()
    numbers = [c.to(y.dtype).contiguous() for c in (mean, invstd, scale)]
    dweight, dbias = torch.empty_like(numbers[0]), torch.empty_like(numbers[0])
    if has_no_values(g):
        return dy, dweight, dbias
    status = getattr(_library(), _NAME)(
        *(t.data_ptr() for t in (g, y, dy)),
        *(y.element_size(), y.numel(), channels, inner),
        NORM.pack(*(t.data_ptr() for t in (sums, *numbers, dweight, dbias))),
        torch.get_num_threads(),
    )
    _check(_NAME, status)
    return dy, dweight, dbias


def norm_sums(g: Tensor, y: Tensor, mean: Tensor) -> Tensor | None:
    """Returns the sum of g (y - mean) for each channel in float64; None if the channels are not innermost in memory.

    g, y: as for `norm_input_gradient`
    mean: [C], of their dtype
    """
    channels = y.shape[2]
    if y.stride(2) != 1:
        return None
    sums = torch.empty(channels, dtype=torch.float64, device="cpu")
    if has_no_values(g):
        return sums
    status = getattr(_library(), _SUMS)(
        *(t.data_ptr() for t in (g, y, mean.contiguous(), sums)),
        *(y.element_size(), y.numel() // channels, channels, torch.get_num_threads()),
    )
    _check(_SUMS, status)
    return sums


def _check(name: str, status: int) -> None:
    if status != 0:
        problem = "has no memory for its sums" if status == 2 else "got an argument that is out of range"
        raise RuntimeError(f"the C++ function {name} {problem}")

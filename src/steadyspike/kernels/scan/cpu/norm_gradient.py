"""Two passes of a batch norm's backward in C++ (csrc/norm/input_gradient.cpp): the sums, and the last step."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library
from steadyspike.kernels.sizes_only import has_no_values

FUNCTIONS = _NAME, _SUMS = "steadyspike_norm_input_gradient", "steadyspike_norm_sums"


@cache
def _library() -> ctypes.CDLL:
    library = load_library(FUNCTIONS)
    if isinstance(library, str):
        raise RuntimeError(library)
    return library


def norm_input_gradient(g: Tensor, y: Tensor, scale: Tensor, by_y: Tensor, constant: Tensor, *, reuse: bool) -> Tensor:
    """Computes scale g + by_y y + constant, in the memory of ``g`` if ``reuse``.

    g, y: [T, B, C, ...] with equal strides that fill one block of memory, float32 or float64

    All others: [C].
    """
    out = g if reuse else torch.empty_like(g)
    channels = y.shape[2]
    inner = y.stride(2) if channels > 1 else y.numel()
    constants = [c.to(y.dtype).contiguous() for c in (scale, by_y, constant)]
    if has_no_values(g):
        return out
    status = getattr(_library(), _NAME)(
        *(ctypes.c_void_p(t.data_ptr()) for t in (g, y, out)),
        *(ctypes.c_int64(i) for i in (y.element_size(), y.numel(), channels, inner)),
        *(ctypes.c_void_p(c.data_ptr()) for c in constants),
        ctypes.c_int64(torch.get_num_threads()),
    )
    _check(_NAME, status)
    return out


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
        *(ctypes.c_void_p(t.data_ptr()) for t in (g, y, mean.contiguous(), sums)),
        *(ctypes.c_int64(i) for i in (y.element_size(), y.numel() // channels, channels, torch.get_num_threads())),
    )
    _check(_SUMS, status)
    return sums


def _check(name: str, status: int) -> None:
    if status != 0:
        problem = "has no memory for its sums" if status == 2 else "got an argument that is out of range"
        raise RuntimeError(f"the C++ function {name} {problem}")

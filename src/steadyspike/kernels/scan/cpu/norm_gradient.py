"""The last step of a batch norm's backward in C++ (csrc/norm/input_gradient.cpp): one pass over memory."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library
from steadyspike.kernels.sizes_only import has_no_values

_NAME = "steadyspike_norm_input_gradient"


@cache
def _library() -> ctypes.CDLL:
    library = load_library((_NAME,))
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
    if status != 0:
        raise RuntimeError(f"the C++ function {_NAME} got an argument that is out of range")
    return out

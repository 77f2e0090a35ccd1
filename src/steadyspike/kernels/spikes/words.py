"""The C++ functions of csrc/spikes/bits.cpp on tensors: spikes to bits and back in one pass over memory each."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library

_FUNCTIONS = ("steadyspike_bits_pack", "steadyspike_bits_unpack")


@cache
def _library() -> ctypes.CDLL | None:
    library = load_library(_FUNCTIONS)
    return None if isinstance(library, str) else library


def can_pack(x: Tensor) -> bool:
    """True if `pack_words` can take ``x``."""
    return x.device.type == "cpu" and x.element_size() in (2, 4, 8) and _library() is not None


def pack_words(x: Tensor, level: Tensor, inner: int) -> Tensor | None:
    """The block of memory of dense ``x`` as bits, int64 [ceil(n / 64)]; None if an element is not 0 or its level.

    level: [1] or [C] in x's dtype; the element at memory offset i belongs to channel (i // inner) % C.
    """
    words = torch.empty(-(-x.numel() // 64), dtype=torch.int64, device="cpu")
    refused = _call(_FUNCTIONS[0], x.data_ptr(), x, level, inner, words.data_ptr())
    return None if refused else words


def unpack_words(words: Tensor, n: int, level: Tensor, inner: int) -> Tensor:
    """The inverse: ``n`` elements in memory order."""
    x = torch.empty(n, dtype=level.dtype, device="cpu")
    _call(_FUNCTIONS[1], words.data_ptr(), x, level, inner, x.data_ptr())
    return x


def _call(name: str, source: int, x: Tensor, level: Tensor, inner: int, target: int) -> int:
    library = _library()
    assert library is not None and level.is_contiguous() and level.dtype == x.dtype
    sizes = (ctypes.c_int64(v) for v in (level.numel(), inner))
    status = getattr(library, name)(
        ctypes.c_void_p(source),
        ctypes.c_int64(x.numel()),
        ctypes.c_int64(x.element_size()),
        ctypes.c_void_p(level.data_ptr()),
        *sizes,
        ctypes.c_void_p(target),
        ctypes.c_int64(torch.get_num_threads()),
    )
    if status < 0:
        raise RuntimeError(f"the C++ function {name} got an argument that is out of range")
    return status

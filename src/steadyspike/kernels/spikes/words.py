"""The C++ functions of csrc/spikes/bits.cpp on tensors: spikes to bits and back in one pass over memory each."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library
from steadyspike.kernels.sizes_only import has_no_values

_FUNCTIONS = tuple(f"steadyspike_bits_{name}" for name in ("pack", "unpack", "first", "count", "differ"))
SAMPLES = 32  # words that are compared with their elements, 64 each
_int, _pointer = ctypes.c_int64, ctypes.c_void_p


@cache
def _library() -> ctypes.CDLL | None:
    library = load_library(_FUNCTIONS)
    return None if isinstance(library, str) else library


def can_pack(x: Tensor) -> bool:
    """True if `pack_words` can take ``x``."""
    return x.device.type == "cpu" and x.element_size() in (2, 4, 8) and _library() is not None


def pack_words(x: Tensor, level: Tensor, inner: int) -> Tensor | None:
    """The blocks of memory of ``x`` [T, n] as bits, int64 [T, ceil(n / 64)]; None if an element is not 0 or its level.

    x: rows dense, each a block of its own. level: [1] or [C] in x's dtype; element i of a row belongs to channel
    (i // inner) % C.
    """
    steps, n = x.shape
    words = torch.empty((steps, -(-n // 64)), dtype=torch.int64, device="cpu")
    rows = [(x, words)] if n % 64 == 0 and x.stride(0) == n else zip(x, words)
    return None if any(_call(_FUNCTIONS[0], a.data_ptr(), a, level, inner, b.data_ptr()) for a, b in rows) else words


def unpack_words(words: Tensor, n: int, level: Tensor, inner: int) -> Tensor:
    """The inverse: [T, n]."""
    x = torch.empty((words.shape[0], n), dtype=level.dtype, device="cpu")
    if has_no_values(x):
        return x
    rows = [(x, words)] if n % 64 == 0 else zip(x, words)
    for a, b in rows:
        _call(_FUNCTIONS[1], b.data_ptr(), a, level, inner, a.data_ptr())
    return x


def may_be(x: Tensor, words: Tensor, level: Tensor, inner: int) -> bool:
    """False if a sample of the elements of ``x``, one block of memory, shows that they are not those of ``words``.

    Arguments as for `pack_words`, with a whole number of words. A change of all of x, or of a large part, is found.
    """
    library = _library()
    assert library is not None and level.is_contiguous() and level.dtype == x.dtype and words.is_contiguous()
    if 64 * words.numel() != x.numel():
        return False
    sizes = (x.numel(), x.element_size()), (level.numel(), inner)
    return not library.steadyspike_bits_differ(
        _pointer(x.data_ptr()),
        *(_int(size) for size in sizes[0]),
        _pointer(level.data_ptr()),
        *(_int(size) for size in sizes[1]),
        _pointer(words.data_ptr()),
        _int(SAMPLES),
    )


def first_level(x: Tensor) -> Tensor:
    """The first value of ``x`` [T, n] that is not 0, [1]; 1 if there is none."""
    library = _library()
    assert library is not None
    for row in x:
        at = library.steadyspike_bits_first(_pointer(row.data_ptr()), _int(row.numel()), _int(row.element_size()))
        if at < row.numel():
            return row[at : at + 1].clone()
    return x.new_ones(1)


def count_words(words: Tensor) -> Tensor:
    """How many bits are set per row, int64 [T]."""
    library = _library()
    assert library is not None and words.is_contiguous()
    counts = torch.empty(words.shape[0], dtype=torch.int64, device="cpu")
    library.steadyspike_bits_count(
        _pointer(words.data_ptr()), *(_int(size) for size in words.shape), _pointer(counts.data_ptr())
    )
    return counts


def _call(name: str, source: int, x: Tensor, level: Tensor, inner: int, target: int) -> int:
    library = _library()
    assert library is not None and level.is_contiguous() and level.dtype == x.dtype
    status = getattr(library, name)(
        _pointer(source),
        *(_int(size) for size in (x.numel(), x.element_size())),
        _pointer(level.data_ptr()),
        *(_int(size) for size in (level.numel(), inner)),
        _pointer(target),
        _int(torch.get_num_threads()),
    )
    if status < 0:
        raise RuntimeError(f"the C++ function {name} got an argument that is out of range")
    return status

"""The C++ functions of csrc/spikes/bits.cpp on tensors: spikes to bits and back, in one pass over memory each."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.library import load_library
from steadyspike.kernels.sizes_only import has_no_values

SAMPLES = 32  # the number of words that are compared with their elements, 64 each
_int, _pointer = ctypes.c_int64, ctypes.c_void_p
# x, n, size, level, levels, inner, words, number
_VALUES = (_pointer, _int, _int, _pointer, _int, _int, _pointer, _int)
_ARGUMENTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pack", "unpack", "differ"), _VALUES),
    "first": (_pointer, _int, _int),
    "count": (_pointer, _int, _int, _pointer),
}


@cache
def _library() -> ctypes.CDLL | None:
    library = load_library([f"steadyspike_bits_{name}" for name in _ARGUMENTS])
    if isinstance(library, str):
        return None
    for name, types in _ARGUMENTS.items():
        getattr(library, f"steadyspike_bits_{name}").argtypes = types
    return library


def can_pack(x: Tensor) -> bool:
    """Returns True if `pack_words` supports ``x``."""
    return x.is_cpu and x.element_size() in (2, 4, 8) and _library() is not None


def pack_words(x: Tensor, level: Tensor, inner: int) -> Tensor | None:
    """Returns the rows of ``x`` [T, n] as bits, int64 [T, ceil(n / 64)]; None if an element is neither 0 nor its level.

    x: rows are dense, each a separate block
    level: [1] or [C] in x's dtype; element i of a row belongs to channel (i // inner) % C
    """
    steps, n = x.shape
    words = torch.empty((steps, -(-n // 64)), dtype=torch.int64, device="cpu")
    rows = [(x, words)] if n % 64 == 0 and x.stride(0) == n else zip(x, words)
    return None if any(_call("pack", a.data_ptr(), a, level, inner, b.data_ptr()) for a, b in rows) else words


def unpack_words(words: Tensor, n: int, level: Tensor, inner: int) -> Tensor:
    """The inverse: [T, n]."""
    x = torch.empty((words.shape[0], n), dtype=level.dtype, device="cpu")
    if has_no_values(x):
        return x
    rows = [(x, words)] if n % 64 == 0 else zip(x, words)
    for a, b in rows:
        _call("unpack", b.data_ptr(), a, level, inner, a.data_ptr())
    return x


def may_be(x: Tensor, words: Tensor, level: Tensor, inner: int) -> bool:
    """Returns False if a sample of the elements of ``x``, one block of memory, shows that they differ from ``words``.

    The arguments are as for `pack_words`, with a whole number of words. A change of all of x, or of a large part, is
    detected.
    """
    library = _library()
    assert library is not None and level.is_contiguous() and level.dtype == x.dtype and words.is_contiguous()
    memory = (x.data_ptr(), x.numel(), x.element_size(), level.data_ptr(), level.numel(), inner, words.data_ptr())
    return not library.steadyspike_bits_differ(*memory, SAMPLES)


def first_level(x: Tensor) -> Tensor:
    """Returns the first value of ``x`` [T, n] that is not 0, [1]; 1 if there is none."""
    library = _library()
    assert library is not None
    for row in x:
        at = library.steadyspike_bits_first(row.data_ptr(), row.numel(), row.element_size())
        if at < row.numel():
            return row[at : at + 1].clone()
    return x.new_ones(1)


def count_words(words: Tensor) -> Tensor:
    """Counts the set bits per row, int64 [T]."""
    library = _library()
    assert library is not None and words.is_contiguous()
    counts = torch.empty(words.shape[0], dtype=torch.int64, device="cpu")
    library.steadyspike_bits_count(words.data_ptr(), *words.shape, counts.data_ptr())
    return counts


def _call(name: str, source: int, x: Tensor, level: Tensor, inner: int, target: int) -> int:
    library = _library()
    assert library is not None and level.is_contiguous() and level.dtype == x.dtype
    memory = (source, x.numel(), x.element_size(), level.data_ptr(), level.numel(), inner, target)
    status = getattr(library, f"steadyspike_bits_{name}")(*memory, torch.get_num_threads())
    if status < 0:
        raise RuntimeError(f"the C++ function steadyspike_bits_{name} got an argument that is out of range")
    return status

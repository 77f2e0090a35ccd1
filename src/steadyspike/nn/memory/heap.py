"""Freed memory kept for the next tensor.

glibc maps every block above 32 MiB afresh and unmaps it when it is freed. A network on the CPU allocates the same large
tensors at every step, so every step pays for new pages again, which takes as long as writing them.
"""

from __future__ import annotations

import ctypes
import platform

# From malloc.h: how many blocks may be mapped one by one, and how much free memory at the heap's end is kept.
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1


def keep_freed_memory() -> bool:
    """Tells the C library to keep freed memory in this process, from now on; results do not change.

    True if it does (Linux with glibc), False where there is nothing to tell. Tensors of more than 32 MiB are then as
    cheap to allocate as small ones; the process keeps its peak size until it ends, and fragments of the heap may raise
    that peak. GPU memory is not concerned: torch keeps it anyway.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, -1))

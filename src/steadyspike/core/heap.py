"""`keep_freed_memory`: lets the process reuse freed memory for the next large tensor.

glibc requests every block above 32 MiB from the system and returns it when it is freed. A network on the CPU allocates
the same large tensors at every step, so the system prepares new pages each time. This takes as long as writing them.
"""

from __future__ import annotations

import ctypes
import os

# From malloc.h: the number of separately mapped blocks, and how much free memory at the end of the heap is kept.
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory in this process from now on; results do not change.

    Returns True if this worked (Linux with glibc), False on other systems. Tensors of more than 32 MiB are then as
    cheap to allocate as small ones. The process keeps its peak size until it ends. A fragmented heap may increase this
    peak. GPU memory is not affected, because torch always caches it.
    """
    # Other C libraries do not know the name. This question takes microseconds, platform.libc_ver() milliseconds.
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", ()) or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, -1))

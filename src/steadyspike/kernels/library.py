"""The compiled C++ library of csrc/: finds the library, and declares its functions for operators.

The library is optional and loaded on first use. It includes no torch header, so that one build serves every torch
version; it is called through ctypes with the addresses of tensors. It uses the OpenMP library that torch has loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

LIBRARY = Path(__file__).with_name("_native.so")
# The best instruction set that may run, like torch's ATEN_CPU_CAPABILITY: to try the code of another machine here.
CAPABILITY = "STEADYSPIKE_CPU_CAPABILITY"
CAPABILITIES = ("base", "avx2", "avx512")


def load_library(functions: Sequence[str], path: Path = LIBRARY) -> ctypes.CDLL | str:
    """Returns the library, with its ``functions`` returning int64.

    If the library cannot be used, returns the reason in one sentence.
    """
    if not path.exists():
        return "the C++ extension is not built (no compiler at install?); reinstall steadyspike with GCC or Clang"
    capability = os.environ.get(CAPABILITY)
    if capability is not None and capability not in CAPABILITIES:
        return f"{CAPABILITY} is {capability!r}; known: {', '.join(CAPABILITIES)}"
    try:
        library = ctypes.CDLL(str(path))
        for name in functions:
            getattr(library, name).restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        return f"the C++ extension does not load: {error}"
    return library


def instruction_sets(library: ctypes.CDLL) -> list[str]:
    """Returns the instruction sets that this build has and this CPU can run, the best last."""
    library.steadyspike_isas.restype = ctypes.c_int64
    library.steadyspike_isa_name.restype = ctypes.c_char_p
    count = library.steadyspike_isas()
    return [library.steadyspike_isa_name(ctypes.c_int64(i)).decode() for i in range(count)]

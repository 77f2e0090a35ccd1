"""The structs of csrc/scan/abi.h, field by field: the arguments of the C++ scan.

All fields have eight bytes. `struct.Struct` packs them in a fraction of the time that ctypes needs for a Structure, and
C++ gets the address of the bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

_int, _double, _pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class AffineStruct(ctypes.Structure):
    """``Affine`` of csrc/scan/abi.h."""

    _fields_ = (
        [(name, _int) for name in ("channels", "inner")]
        + [(name, _pointer) for name in ("scale", "shift", "extra", "extra_scale")]
        + [("extra_stride", _int), ("step_stride", _int), ("extra_bits", _pointer)]
    )


class ScanStruct(ctypes.Structure):
    """``Scan`` of csrc/scan/abi.h."""

    _fields_ = (
        [(name, _int) for name in ("dtype", "steps", "n", "channels", "inner")]  # type: ignore[assignment]
        + [(name, _int) for name in ("family", "surrogate", "reset", "detach", "strict", "decay_input")]
        + [(name, _double) for name in ("width", "scale", "temperature")]
        + [(name, _int) for name in ("u0_kind", "v_kind", "a_kind")]
        + [(name, _pointer) for name in ("x", "u0", "v", "a")]
        + [("x_stride", _int), ("affine", ctypes.POINTER(AffineStruct))]
        + [(name, _int) for name in ("threads", "isa")]
    )


class ForwardStruct(ctypes.Structure):
    """``Forward`` of csrc/scan/abi.h."""

    _fields_ = (
        [(name, _pointer) for name in ("out", "u", "m", "active")]
        + [("channelwise", _int)]
        + [(name, _pointer) for name in ("bits", "needed", "counts")]
    )


class BackwardStruct(ctypes.Structure):
    """``Backward`` of csrc/scan/abi.h."""

    _fields_ = (
        [(name, _pointer) for name in ("g_out", "g_u", "g_m")]
        + [(name, _int) for name in ("g_out_stride", "g_m_stride")]
        + [(name, _pointer) for name in ("dx", "du0", "dv", "da", "v_slope", "a_slope", "center", "norm_sums")]
    )


_LETTERS: dict[object, str] = {_int: "q", _double: "d"}


def packer(fields: Sequence[tuple[str, object]]) -> struct.Struct:
    """Packs values for ``fields``; an address is an int, 0 for null."""
    return struct.Struct("".join(_LETTERS.get(kind, "P") for _, kind in fields))


_FIRST = [name for name, *_ in ScanStruct._fields_].index("x")
# the values of one call; calls of the same shape share the preceding fields
MEMORY_FIELDS = ScanStruct._fields_[_FIRST:]
pack_settings = packer(ScanStruct._fields_[:_FIRST]).pack

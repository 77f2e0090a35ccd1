"""The structs of csrc/scan/abi.h and csrc/neuron/neuron_abi.h, field by field: the arguments of the C++ scan.

All fields have eight bytes. `struct.Struct` packs them in a fraction of the time that ctypes needs for a Structure, and
C++ gets the address of the bytes.
"""

from __future__ import annotations

import ctypes
import struct

_int, _pointer = ctypes.c_int64, ctypes.c_void_p

# Per struct: the letters of `struct` (q: int64, d: double, P: address, an int, 0 for null) and names of its fields.
LINKS = "qq ddddd", "v_link a_link v_low v_high a_low a_high least_slope"
# Scan is in two parts: calls of the same shape share the settings, and each call has its own addresses.
SETTINGS = (
    "qqqqq qqqqqq ddd qqq",
    "dtype steps n channels inner family surrogate reset detach strict decay_input width scale temperature "
    "u0_kind v_kind a_kind",
)
MEMORY = "PPPP qPP qq", "x u0 v a x_stride affine conv threads isa"
FORWARD = "PPPP q PPP", "out u m active channelwise bits needed counts"
BACKWARD = "PPP qq PPPP PP PP", ("g_out g_u g_m g_out_stride g_m_stride dx du0 dv da v_slope a_slope center norm_sums")
PARAMETERS = "PP", "k w"
START = "PP dd", "u0 mean start momentum"


def packer(*parts: tuple[str, str]) -> struct.Struct:
    """Packs the values of the fields of ``parts``, one part after the other."""
    assert all(len(letters.replace(" ", "")) == len(names.split()) for letters, names in parts)
    return struct.Struct("".join(letters for letters, _ in parts))


class AffineStruct(ctypes.Structure):
    """``Affine`` of csrc/scan/abi.h."""

    _fields_ = (
        [(name, _int) for name in ("channels", "inner")]
        + [(name, _pointer) for name in ("scale", "shift", "extra", "extra_scale")]
        + [("extra_stride", _int), ("step_stride", _int), ("extra_bits", _pointer)]
    )


pack_plan = packer(LINKS, SETTINGS).pack
pack_forward = packer(MEMORY, FORWARD, PARAMETERS, START).pack
pack_backward = packer(MEMORY, BACKWARD, PARAMETERS).pack
# What steadyspike_neuron_abi of the same sources returns: the sizes of both structs, and NEURON_VERSION.
ABI = packer(LINKS, SETTINGS, MEMORY, FORWARD, PARAMETERS, START).size * 10000
ABI += packer(LINKS, SETTINGS, MEMORY, BACKWARD, PARAMETERS).size + 100000000 * 5

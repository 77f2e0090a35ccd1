"""The structs of csrc/deploy/deployed_abi.h, field by field: what the C++ code of a deployed layer is called with."""

from __future__ import annotations

import ctypes

from steadyspike.kernels.conv.abi import ConvStruct

_int, _pointer = ctypes.c_int64, ctypes.c_void_p

CONV_OF_SPIKES, IDENTITY_OF_SPIKES, NUMBERS = range(3)  # SourceKind
EMIT_SPIKES, EMIT_POTENTIAL, EMIT_CURRENT = range(3)  # LayerEmit


class SourceStruct(ctypes.Structure):
    """``LayerSource``."""

    _fields_ = [
        ("kind", _int), ("conv", ConvStruct), ("packed", _pointer), ("bits", _pointer), ("values", _pointer),
        ("sample_stride", _int), ("step_stride", _int),
    ]  # fmt: skip


class LayerStruct(ctypes.Structure):
    """``SpikeLayer``."""

    _fields_ = (
        [(name, _int) for name in ("samples", "steps", "height", "width", "channels", "sources")]  # type: ignore[assignment]
        + [("source", ctypes.POINTER(SourceStruct)), ("gain", _pointer), ("bias", _pointer)]
        + [("gain_steps", _int), ("bias_steps", _int)]
        + [(name, _pointer) for name in ("threshold", "fire", "keep", "factor", "start")]
        + [("start_pixels", _int), ("reset", _int), ("emit", _int)]
        + [("bits", _pointer), ("out", _pointer), ("fired", _pointer), ("threads", _int), ("isa", _int)]
    )


class WindowsStruct(ctypes.Structure):
    """``SpikeWindows``."""

    _fields_ = (
        [(name, _int) for name in ("images", "height", "width", "channels", "out_height", "out_width")]  # type: ignore[assignment]
        + [(name, _int * 2) for name in ("kernel", "stride", "padding")]
        + [("count_padding", _int), ("bits", _pointer), ("out", _pointer), ("threads", _int)]
    )


ABI = 1000000 + ctypes.sizeof(SourceStruct) * 1000 + ctypes.sizeof(LayerStruct) + ctypes.sizeof(WindowsStruct)

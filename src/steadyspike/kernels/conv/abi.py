"""The structs of csrc/conv/conv_abi.h, field by field: the arguments of the C++ spike convolution."""

from __future__ import annotations

import ctypes

_int, _pointer = ctypes.c_int64, ctypes.c_void_p


class ConvStruct(ctypes.Structure):
    """``SpikeConv`` of csrc/conv/conv_abi.h."""

    _fields_ = (
        [(name, _int) for name in ("steps", "batch", "in_channels", "height", "width", "out_channels")]  # type: ignore[assignment]
        + [(name, _int * 2) for name in ("kernel", "stride", "padding", "dilation")]
        + [(name, _int) for name in ("channels_last", "pixel_bits", "words")]
        + [("bits", _pointer), ("threads", _int), ("isa", _int)]
    )


class WeightStruct(ctypes.Structure):
    """``ConvWeight`` of csrc/conv/conv_abi.h."""

    _fields_ = [("data", _pointer), ("stride", _int * 4)]


BY_TAP, BY_CHANNEL = 0, 1  # ConvOrder
ABI = 1000 + ctypes.sizeof(ConvStruct)

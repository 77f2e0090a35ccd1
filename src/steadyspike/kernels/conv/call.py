"""The C++ spike convolution on tensors, without autograd: bits in, float32 out.

    geometry = ConvGeometry(steps=4, batch=1, in_channels=64, height=8, width=8, out_channels=128, kernel=(3, 3), ...)
    packed = pack_weight(geometry, weight)
    out = conv_forward(geometry, spikes.words, packed, scale=float(level), bias=bias)

Every result is the same for any number of threads. A result of None means that some numbers are not finite: 0 times NaN
or infinity is NaN, and only the dense convolution computes this everywhere.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.kernels.conv.abi import ABI, BY_CHANNEL, BY_TAP, ConvStruct
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.layout import KEPT_SHAPES
from steadyspike.kernels.library import instruction_sets, load_library
from steadyspike.kernels.sizes_only import has_no_values

_NAMES = ("packed_size", "pack", "forward", "weight_gradient", "input_gradient", "full_input_gradient", "abi")
_FUNCTION = {name: f"steadyspike_conv_{name}" for name in _NAMES}
_MEMORY = struct.Struct("P2q")  # bits, threads, isa: the last fields of `ConvStruct`
_WEIGHT = struct.Struct("P4q")  # `WeightStruct`
_INPUT = struct.Struct("2Pd")  # packed, bias, scale: the last fields of ``ConvInput``
_FAILED = {1: "an argument is out of range", 2: "out of memory for its scratch space"}
_NOT_FINITE = 3
_int, _pointer = ctypes.c_int64, ctypes.c_void_p


@cache
def conv_library() -> ctypes.CDLL | str:
    """Returns the library, or the reason why it cannot be used."""
    library = load_library(list(_FUNCTION.values()))
    if not isinstance(library, str) and library.steadyspike_conv_abi() != ABI:
        return "the C++ extension was built from another version of the sources; reinstall steadyspike"
    return library


@cache
def instruction_set() -> str:
    """Returns the best instruction set that can be used here; "" without the library."""
    library = conv_library()
    return "" if isinstance(library, str) else instruction_sets(library)[-1]


def supports(geometry: ConvGeometry) -> bool:
    """Returns True if the kernel supports this shape: all except extreme strides and image sizes."""
    return not isinstance(conv_library(), str) and packed_size(geometry) > 0


def conv_struct(g: ConvGeometry, words: Tensor | None = None, isa: int = -1) -> ConvStruct:
    expected = (torch.int64, (g.steps, g.step_words), True)
    if words is not None and (words.dtype, words.shape, words.is_contiguous()) != expected:
        raise ValueError(f"bits must be contiguous int64 {list(expected[1])}, got {words.dtype} {list(words.shape)}")
    pairs = ((_int * 2)(*pair) for pair in (g.kernel, g.stride, g.padding, g.dilation))
    return ConvStruct(
        *(g.steps, g.batch, g.in_channels, g.height, g.width, g.out_channels),
        *pairs,
        *(g.channels_last, g.pixel_bits or g.in_channels, g.step_words),
        *(None if words is None else words.data_ptr(), torch.get_num_threads(), isa),
    )


@lru_cache(maxsize=KEPT_SHAPES)
def packed_size(g: ConvGeometry) -> int:
    return _call("packed_size", g)


@lru_cache(maxsize=KEPT_SHAPES)
def _sizes(g: ConvGeometry) -> bytes:
    """Returns the C struct without its addresses."""
    return bytes(conv_struct(g))[: ConvStruct.bits.offset]


def _struct(g: ConvGeometry, words: Tensor | None, isa: int) -> bytes:
    """Returns `conv_struct` as bytes, packed in a fraction of the time."""
    if words is None:
        return _sizes(g) + _MEMORY.pack(0, torch.get_num_threads(), isa)
    shape = g.steps, g.step_words
    if words.dtype != torch.int64 or words.shape != shape or not words.is_contiguous():
        raise ValueError(f"bits must be contiguous int64 {list(shape)}, got {words.dtype} {list(words.shape)}")
    return _sizes(g) + _MEMORY.pack(words.data_ptr(), torch.get_num_threads(), isa)


def _call(name: str, g: ConvGeometry, *arguments: object, words: Tensor | None = None, isa: int = -1) -> int:
    library = conv_library()
    if isinstance(library, str):
        raise RuntimeError(f"the spike convolution cannot run here: {library}")
    return getattr(library, _FUNCTION[name])(_struct(g, words, isa), *arguments)


def _finite(status: int) -> bool:
    if status in _FAILED:
        raise RuntimeError(f"the C++ spike convolution failed: {_FAILED[status]}")
    return status != _NOT_FINITE


def _address(t: Tensor | None) -> ctypes.c_void_p:
    if t is not None and (t.dtype != torch.float32 or t.device.type != "cpu"):
        raise ValueError(f"the spike convolution takes float32 on the CPU, got {t.dtype} on {t.device}")
    return _pointer(None if t is None else t.data_ptr())


def _weight(g: ConvGeometry, weight: Tensor) -> bytes:
    shape = (g.out_channels, g.in_channels, *g.kernel)
    if weight.shape != shape:
        raise ValueError(f"the weight must have shape {list(shape)}, got {list(weight.shape)}")
    return _WEIGHT.pack(_address(weight).value or 0, *weight.stride())


def pack_weight(
    geometry: ConvGeometry, weight: Tensor, level: Tensor | None = None, order: int = BY_TAP, isa: int = -1
) -> Tensor | None:
    """Rearranges ``weight`` [O, C, kh, kw] into the order in which a kernel reads it.

    Multiplies by ``level`` [C] if given.
    """
    packed = torch.empty(packed_size(geometry), device="cpu")
    if level is not None and (level.shape != (geometry.in_channels,) or not level.is_contiguous()):
        raise ValueError(f"level must be [{geometry.in_channels}], one per input channel, got {list(level.shape)}")
    if has_no_values(packed):
        return packed
    arguments = (_weight(geometry, weight), _address(level), _int(order), _address(packed))
    status = _call("pack", geometry, *arguments, isa=isa)
    return packed if _finite(status) else None


def conv_forward(
    geometry: ConvGeometry, words: Tensor, packed: Tensor, scale: float = 1.0, bias: Tensor | None = None, isa: int = -1
) -> Tensor:
    """Returns ``scale`` times the sums of the packed weights of the spikes, plus ``bias``: [images, O, H', W'].

    words: int64 [steps, ceil(n / 64)], see `PackedSpikes`
    packed: the result of `pack_weight`
    """
    if packed.numel() != packed_size(geometry) or not packed.is_contiguous():
        raise ValueError("the packed weights were made for another geometry")
    if bias is not None and (bias.shape != (geometry.out_channels,) or not bias.is_contiguous()):
        raise ValueError(f"bias must be [{geometry.out_channels}], got {list(bias.shape)}")
    out = geometry.empty_output()
    if has_no_values(out):
        return out
    arguments = (_address(packed), ctypes.c_float(scale), _address(bias), _address(out))
    _finite(_call("forward", geometry, *arguments, words=words, isa=isa))
    return out


class ConvInput(NamedTuple):
    """A convolution of spikes by events: the arguments of `conv_forward`."""

    geometry: ConvGeometry
    words: Tensor
    packed: Tensor
    scale: float = 1.0
    bias: Tensor | None = None

    def run(self) -> Tensor:
        return conv_forward(*self)

    def struct(self, isa: int = -1) -> ctypes.Array[ctypes.c_char]:
        """Returns ``ConvInput`` of csrc/conv/conv_abi.h; its addresses are valid as long as the tensors exist."""
        packed, bias = (_address(t).value or 0 for t in (self.packed, self.bias))
        given = _struct(self.geometry, self.words, isa) + _INPUT.pack(packed, bias, self.scale)
        return ctypes.create_string_buffer(given, len(given))


def conv_weight_gradient(
    geometry: ConvGeometry, words: Tensor, g: Tensor, level: Tensor, like: Tensor, isa: int = -1
) -> Tensor | None:
    """Returns the gradient of the weight, with the layout of ``like``, for spikes of ``level`` ([1] or [C])."""
    geometry.check_output(g)
    if level.numel() not in (1, geometry.in_channels) or not level.is_contiguous():
        raise ValueError(f"level must be [1] or [{geometry.in_channels}], got {list(level.shape)}")
    gradient = torch.empty_like(like)
    if has_no_values(gradient):
        return gradient
    arguments = (_address(g), _address(level), _int(level.numel()), _weight(geometry, gradient))
    status = _call("weight_gradient", geometry, *arguments, words=words, isa=isa)
    # The kernel reads only the gradients of outputs that depend on an input.
    unseen = geometry.has_outputs_of_padding and not bool(g.isfinite().all())
    return gradient if _finite(status) and not unseen else None


def conv_input_gradient(
    geometry: ConvGeometry, places: Tensor, g: Tensor, weight: Tensor, isa: int = -1
) -> Tensor | None:
    """The gradient of the input at the elements whose bits in ``places`` are set, 0 elsewhere: [images, C, H, W]."""
    geometry.check_output(g)
    packed = pack_weight(geometry, weight, order=BY_CHANNEL, isa=isa)
    if packed is None:
        return None
    dx = geometry.empty_input()
    if has_no_values(dx):
        return dx
    arguments = (_address(packed), _address(g), _address(dx))
    status = _call("input_gradient", geometry, *arguments, words=places, isa=isa)
    return dx if _finite(status) else None


def conv_full_input_gradient(geometry: ConvGeometry, g: Tensor, weight: Tensor, isa: int = -1) -> Tensor | None:
    """The gradient of the input at all elements, for the geometries of `has_full_input_gradient`: [images, C, H, W]."""
    geometry.check_output(g)
    dx = geometry.empty_input()
    if has_no_values(dx):
        return dx
    arguments = (_weight(geometry, weight), _address(g), _address(dx))
    status = _call("full_input_gradient", geometry, *arguments, isa=isa)
    return dx if _finite(status) else None

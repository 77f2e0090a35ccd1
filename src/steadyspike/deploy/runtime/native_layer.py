"""The C++ layer on tensors.

Spikes are words, int64 [B, T, H, W, ceil(C / 64)]: channel c of a pixel is bit c % 64 of its word c // 64, and bits
after the last channel are 0. Numbers are float32 [B, T, H, W, C].
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from steadyspike.kernels.conv.abi import ConvStruct
from steadyspike.kernels.conv.call import conv_struct, packed_size
from steadyspike.kernels.conv.geometry import ConvGeometry, Pair
from steadyspike.kernels.library import load_library

_FAILED = {1: "an argument is out of range", 2: "out of memory for its scratch space"}


@cache
def layer_library() -> ctypes.CDLL | str:
    """Returns the library, or the reason why it cannot be used."""
    library = load_library([f"steadyspike_layer_{name}" for name in ("run", "windows", "abi")])
    if not isinstance(library, str) and library.steadyspike_layer_abi() != ABI:
        return "the C++ extension was built from another version of the sources; reinstall steadyspike"
    return library


def words_for(channels: int) -> int:
    return -(-channels // 64)


@dataclass(frozen=True)
class SpikeConvSource:
    """A convolution of spikes.

    geometry: of B x T images, with ``pixel_bits`` a multiple of 64
    packed: the result of `pack_weight`
    """

    words: Tensor
    geometry: ConvGeometry
    packed: Tensor

    def struct(self, isa: int) -> SourceStruct:
        words = self.words.view(self.geometry.steps, -1)
        return SourceStruct(CONV_OF_SPIKES, conv_struct(self.geometry, words, isa), self.packed.data_ptr())


@dataclass(frozen=True)
class IdentitySource:
    """An identity edge: a spike of channel c adds ``values[c]`` at the same position.

    values: [64 words]
    """

    words: Tensor
    values: Tensor

    def struct(self, isa: int) -> SourceStruct:
        words, values = self.words.data_ptr(), self.values.data_ptr()
        return SourceStruct(IDENTITY_OF_SPIKES, ConvStruct(), None, words, values)


@dataclass(frozen=True)
class NumberSource:
    """Numbers [B, T, H, W, C], every [H, W, C] contiguous; a time stride of 0 repeats one frame."""

    values: Tensor

    def struct(self, isa: int) -> SourceStruct:
        values = self.values
        return SourceStruct(NUMBERS, ConvStruct(), None, None, values.data_ptr(), values.stride(0), values.stride(1))


Source = SpikeConvSource | IdentitySource | NumberSource


@dataclass(frozen=True)
class NeuronRows:
    """Constants of a neuron layer, float32 [64 words] each, padded with 0 and ``fire`` with infinity.

    fire: the smallest potential that fires
    keep: 1 - a
    factor: of the current
    start: U[0], [1 or H W, 64 words]
    reset: code of `ScanSpec`
    potential: M is returned instead of spikes
    """

    threshold: Tensor
    fire: Tensor
    keep: Tensor
    factor: Tensor
    start: Tensor
    reset: int
    potential: bool = False


@dataclass(frozen=True)
class LayerShape:
    """The shape of a layer's output."""

    samples: int
    steps: int
    height: int
    width: int
    channels: int

    @property
    def pixels(self) -> tuple[int, int, int, int]:
        return self.samples, self.steps, self.height, self.width


def run_layer(
    shape: LayerShape,
    sources: Sequence[Source],
    neuron: NeuronRows | None,
    *,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    isa: int = -1,
) -> tuple[Tensor, int] | None:
    """Returns spikes as words and their number.

    Without a neuron it returns the current, and with ``neuron.potential`` M: numbers, and 0.

    The current is gain * (sum of the convolutions) + bias + the other sources; gain, bias: [1 or T, 64 words]. Returns
    None if a potential is NaN.
    """
    library = layer_library()
    if isinstance(library, str):
        raise RuntimeError(f"the deployed layer cannot run here: {library}")
    for source in sources:
        _check(source, shape)
    emit = EMIT_CURRENT if neuron is None else EMIT_POTENTIAL if neuron.potential else EMIT_SPIKES
    if emit == EMIT_SPIKES:
        out = torch.empty((*shape.pixels, words_for(shape.channels)), dtype=torch.int64, device="cpu")
    else:
        out = torch.empty((*shape.pixels, shape.channels), device="cpu")
    fired = (ctypes.c_int64 * 2)()
    rows: tuple[Tensor | None, ...] = (None,) * 5
    if neuron is not None:
        rows = (neuron.threshold, neuron.fire, neuron.keep, neuron.factor, neuron.start)
    structs = (SourceStruct * max(1, len(sources)))(*(source.struct(isa) for source in sources))
    struct = LayerStruct(
        *(shape.samples, shape.steps, shape.height, shape.width, shape.channels, len(sources), structs),
        *(_rows(t, shape) for t in (gain, bias)),
        *(1 if t is None else t.shape[0] for t in (gain, bias)),
        *(_rows(t, shape) for t in rows),
        *(1, 0) if neuron is None else (neuron.start.shape[0], neuron.reset),
        emit,
        *((out.data_ptr(), None) if emit == EMIT_SPIKES else (None, out.data_ptr())),
        *(ctypes.addressof(fired), torch.get_num_threads(), isa),
    )
    _raise(library.steadyspike_layer_run(ctypes.byref(struct)))
    return None if fired[1] else (out, fired[0])


def _rows(t: Tensor | None, shape: LayerShape) -> int | None:
    if t is None:
        return None
    if t.dtype != torch.float32 or not t.is_contiguous() or t.shape[-1] != 64 * words_for(shape.channels):
        raise ValueError(
            f"constants are contiguous float32 [..., {64 * words_for(shape.channels)}], got {list(t.shape)}"
        )
    return t.data_ptr()


def _check(source: Source, shape: LayerShape) -> None:
    if isinstance(source, NumberSource):
        t = source.values
        inner = (shape.width * shape.channels, shape.channels, 1)
        strides = all(s == r or n == 1 for s, r, n in zip(t.stride()[2:], inner, t.shape[2:]))
        if t.shape != (*shape.pixels, shape.channels) or t.dtype != torch.float32 or not strides:
            raise ValueError(f"numbers must be float32 {[*shape.pixels, shape.channels]}, got {list(t.shape)}")
        return
    words = source.words
    if words.dtype != torch.int64 or not words.is_contiguous():
        raise ValueError("words must be contiguous int64")
    if isinstance(source, IdentitySource) and words.shape != (*shape.pixels, words_for(shape.channels)):
        raise ValueError(f"words must be [{shape.pixels}, {words_for(shape.channels)}], got {list(words.shape)}")
    if isinstance(source, IdentitySource):
        _rows(source.values, shape)
    elif source.packed.numel() != packed_size(source.geometry) or not source.packed.is_contiguous():
        raise ValueError("the packed weights were made for another geometry")


def window_means(
    words: Tensor,
    channels: int,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    count_padding: bool = True,
) -> Tensor:
    """Returns the spikes per pixel of each window, [B, T, H', W', C]: an average pool.

    With windows of one pixel it only unpacks the bits.
    """
    library = layer_library()
    if isinstance(library, str):
        raise RuntimeError(f"the deployed layer cannot run here: {library}")
    samples, steps, height, width, _ = words.shape
    rows, columns = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip((height, width), padding, kernel, stride))
    out = torch.empty((samples, steps, rows, columns, channels), device="cpu")
    if words.dtype != torch.int64 or not words.is_contiguous() or words.shape[-1] != words_for(channels):
        raise ValueError(f"words must be contiguous int64 [..., {words_for(channels)}], got {list(words.shape)}")
    pairs = ((ctypes.c_int64 * 2)(*pair) for pair in (kernel, stride, padding))
    struct = WindowsStruct(
        *(samples * steps, height, width, channels, rows, columns),
        *pairs,
        *(count_padding, words.data_ptr(), out.data_ptr(), torch.get_num_threads()),
    )
    _raise(library.steadyspike_layer_windows(ctypes.byref(struct)))
    return out


def _raise(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"the C++ layer failed: {_FAILED.get(status, status)}")


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

"""``neuron(norm(conv(x)) + extra)`` in evaluation as one call of C++; the convolution's output stays in the cache.

For some rows of the output, C++ adds up the weights of the spikes below them at all time steps, and then runs norm and
scan over these sums. They are never written to memory. The result is equal, bit for bit, to that of the convolution and
`norm_neuron`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from steadyspike.kernels.conv.function import steps_aside
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.layout import KEPT_SHAPES
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.nn.event_layers import EventConv2d
from steadyspike.nn.fused import Norms, forward_layer, layer_constants, must_be_called, native_start
from steadyspike.nn.fused_norm import Normed, fits_node, fits_second, norm_neuron, norms_of
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.operator_norm import OWN_CODE, fits
from steadyspike.nn.time import fold_time

UNIT_PIXELS = 1024  # pixels times steps of a unit: FORWARD_PIXELS of csrc/conv/conv_plan.h
UNIT_BYTES = 2 << 20  # the largest unit that was measured to be faster than an output in memory: ResNet-19 of width 1


def conv_norm_neuron(
    conv: nn.Module, norm: nn.Module, neuron: nn.Module, x: Tensor, extra: Tensor | Normed | None = None
) -> Tensor:
    """Computes ``neuron(norm(conv(x)) + extra)`` for ``x`` [T, B, C, H, W], in one call of C++ if possible.

    It is one call in evaluation without gradients, eager in float32 on the CPU and channels_last, if the convolution
    runs by events and nothing observes one of the layers. Otherwise it is `norm_neuron` of the convolution's output.
    """
    if type(conv) is not EventConv2d or not isinstance(neuron, Neuron) or not _unobserved(conv, norm, neuron, x):
        return norm_neuron(norm, neuron, fold_time(conv, x), extra)
    images = x.flatten(0, 1)
    source = conv.as_input(images)
    if source is not None and stays_in_cache(source.geometry, x.shape[0]):
        y = _without_values(source.geometry).unflatten(0, x.shape[:2])
        if isinstance(extra, Normed) and not (isinstance(norm, TimeNorm) and fits_second(norm, neuron, y, extra)):
            extra = extra.value()
        fitting, norms = _norms(norm, neuron, y, extra)
        if fitting:
            return forward_layer(neuron, y, norms, source)
    y = conv.dense(images) if source is None else source.run()
    return norm_neuron(norm, neuron, y.unflatten(0, x.shape[:2]), extra)


def _unobserved(conv: EventConv2d, norm: nn.Module, neuron: Neuron, x: Tensor) -> bool:
    """Returns True in evaluation without gradients, if no hook, tap or code of the user needs a value in between."""
    if torch.is_grad_enabled() or steps_aside(x, conv.weight, conv.bias) or type(x) is not Tensor or x.ndim != 5:
        return False
    if conv.training or norm.training or neuron.training or neuron.taps or neuron.overridden & OWN_CODE:
        return False
    return not any(must_be_called(layer) for layer in (conv, norm, neuron))


def stays_in_cache(g: ConvGeometry, steps: int) -> bool:
    """Returns True if C++ can compute the output in units of whole rows: of whole words of bits, and small enough."""
    columns, channels = g.out_size[1], g.out_channels
    if not g.channels_last or columns * channels % 64:
        return False
    return max(UNIT_PIXELS, steps * columns) * channels * 4 <= UNIT_BYTES


def _norms(norm: nn.Module, neuron: Neuron, y: Tensor, extra: Tensor | Normed | None) -> tuple[bool, Norms | None]:
    """Returns whether norm and scan of ``y``, whose values are not read, may be one node, and the norm's part of it."""
    start = native_start(neuron, y.dtype)
    if start is None:  # U[0] may then depend on the values of y
        return False, None
    if type(norm) is nn.Identity and extra is None:
        neuron.check_input(y)
        k, w, _ = layer_constants(neuron, y.dtype)
        tensors = (y, k, w) if start.mean is None else (y, k, w, start.mean)
        return choose_way(neuron.backend, neuron.spec, *tensors) == "fused", None
    if not isinstance(norm, TimeNorm) or not fits(norm, y):
        return False, None
    if not fits_node(norm, neuron, y, extra.y if isinstance(extra, Normed) else extra):
        return False, None
    neuron.check_input(y)
    norm.check_input(y)
    return True, norms_of(norm, y, extra)


@lru_cache(maxsize=KEPT_SHAPES)
def _without_values(g: ConvGeometry) -> Tensor:
    """Returns a tensor like the output, without memory; the same one for the same geometry.

    Allocating and freeing the memory in every call could make the C library return it to the system each time.
    """
    with torch.inference_mode(False):  # a tensor of inference mode could not be used outside of it
        y = g.empty_output()
    y.untyped_storage().resize_(0)
    return y

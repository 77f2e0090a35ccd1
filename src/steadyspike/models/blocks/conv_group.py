"""Several conv-norm-spike layers with one input, computed as one: q, k and v of an attention layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF, is_repeated
from steadyspike.nn.event_layers import EventConv2d, pointwise_group
from steadyspike.nn.fused import must_be_called
from steadyspike.nn.fused_group import may_group, norm_neuron_group

_ONE, _NONE = (1, 1), (0, 0)


def grouped_spikes(layers: Sequence[ConvNormLIF], x: Tensor) -> Tensor | None:
    """The outputs of 1x1 layers concatenated along the channels, [T, B, sum of C, H, W] in channels_last format.

    Returns None if the layers must run one by one: if x has another format or is on another device, if a hook reads one
    of the layers, or if they are not alike (see `may_group`).
    """
    if x.ndim != 5 or x.stride(2) != 1 or x.device.type != "cpu" or torch.compiler.is_compiling() or is_repeated(x):
        return None
    pairs = [layer.conv_norm for layer in layers]
    if not all(_plain(layer, pair) for layer, pair in zip(layers, pairs)):
        return None
    norms, neurons = [pair.norm for pair in pairs], [layer.lif for layer in layers]
    if not may_group(norms, neurons):
        return None
    y = pointwise_group([pair.conv for pair in pairs], x.flatten(0, 1))
    return None if y is None else norm_neuron_group(norms, neurons, y.unflatten(0, tuple(x.shape[:2])))


def _plain(layer: nn.Module, pair: nn.Module) -> bool:
    """Returns True if the layer is a 1x1 convolution, norm and neuron as built by this library, without hooks."""
    if type(layer) is not ConvNormLIF or type(pair) is not ConvNorm or not isinstance(layer.pool, nn.Identity):
        return False
    conv = pair.conv
    if type(conv) is not EventConv2d or any(must_be_called(module) for module in (layer, pair, conv)):
        return False
    return conv.kernel_size == _ONE and conv.stride == _ONE and conv.padding == _NONE and conv.groups == 1

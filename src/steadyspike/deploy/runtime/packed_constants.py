"""The constants of a layer in the form that the C++ code reads: rows of channels, and packed weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.core.spec import RESETS
from steadyspike.deploy.graph import Node
from steadyspike.deploy.runtime.native_layer import NeuronRows, words_for
from steadyspike.deploy.runtime.plan import Layer, Synapse
from steadyspike.deploy.runtime.values import as_image
from steadyspike.kernels.conv.call import pack_weight, supports
from steadyspike.kernels.conv.geometry import ConvGeometry, Pair


def channel_rows(constant: Tensor, channels: int, fill: float = 0.0) -> Tensor:
    """Returns [1], [C] or [n, C] as contiguous [n, 64 words], padded."""
    rows = constant if constant.ndim == 2 else constant.reshape(1, -1)
    rows = rows.expand(rows.shape[0], channels)
    return F.pad(rows, (0, 64 * words_for(channels) - channels), value=fill).contiguous()


def neuron_rows(node: Node) -> NeuronRows:
    channels, rows, columns = as_image(node.shape)
    v, a, start = (node.tensors[name] for name in ("threshold", "leak", "start"))
    # M > V is the same as M >= the next number above V.
    fire = torch.nextafter(v, torch.full_like(v, math.inf)) if node.options["strict"] else v
    if start.ndim > 1:
        start = start.expand(node.shape).reshape(channels, rows * columns).t()
    factor = a if node.options["decay_input"] else torch.ones_like(a)
    return NeuronRows(
        channel_rows(v, channels)[0],
        channel_rows(fire, channels, math.inf)[0],
        channel_rows(1 - a, channels)[0],
        channel_rows(factor, channels)[0],
        channel_rows(start, channels),
        RESETS[node.options["reset"]],
        node.options["emit"] == "potential",
    )


@dataclass(frozen=True)
class PackedSynapse:
    """A synapse with its weights for events and for the dense convolution.

    packed: None if it is always dense
    """

    synapse: Synapse
    weight: Tensor
    packed: Tensor | None
    _geometries: dict[int, ConvGeometry] = field(default_factory=dict)

    def geometry(self, images: int) -> ConvGeometry:
        """Returns the geometry for this number of images."""
        s = self.synapse
        channels, rows, columns = as_image(s.shape)
        kernel = (s.weight.shape[2], s.weight.shape[3])
        return ConvGeometry(
            images, 1, channels, rows, columns, s.weight.shape[0], kernel, s.stride, s.padding, s.dilation
        )

    def event_geometry(self, images: int) -> ConvGeometry:
        """Returns the geometry of the convolution of the spikes themselves, whose bits begin with a new word per pixel.

        An average over windows of k pixels followed by a convolution is one convolution of the spikes. Every weight is
        repeated k times in each direction and divided by the window's size; strides and padding are k times as large.
        """
        # Making one takes longer than many layers take for one image.
        if images not in self._geometries:
            self._geometries[images] = self._event_geometry(images)
        return self._geometries[images]

    def _event_geometry(self, images: int) -> ConvGeometry:
        g, (rows, columns) = self.geometry(images), self.synapse.pool

        def scaled(pair: Pair) -> Pair:
            return pair[0] * rows, pair[1] * columns

        return replace(
            g,
            height=g.height * rows,
            width=g.width * columns,
            kernel=scaled(g.kernel),
            stride=scaled(g.stride),
            padding=scaled(g.padding),
            pixel_bits=64 * words_for(g.in_channels),
        )


def packed_synapse(synapse: Synapse, isa: int) -> PackedSynapse:
    dense = PackedSynapse(synapse, synapse.weight.contiguous(memory_format=torch.channels_last), None)
    if not synapse.writers:
        return dense
    geometry = dense.event_geometry(1)
    if not supports(geometry):
        return dense
    rows, columns = synapse.pool
    weight = synapse.weight.repeat_interleave(rows, 2).repeat_interleave(columns, 3) / (rows * columns)
    return PackedSynapse(synapse, dense.weight, pack_weight(geometry, weight, isa=isa))


@dataclass(frozen=True)
class LayerConstants:
    """All values of a layer that do not change from call to call."""

    layer: Layer
    neuron: NeuronRows | None
    synapses: list[PackedSynapse]
    identities: list[Tensor]
    gain: Tensor | None
    bias: Tensor | None


def layer_constants(layer: Layer, isa: int) -> LayerConstants:
    channels = layer.node.shape[0]
    return LayerConstants(
        layer,
        None if layer.neuron is None else neuron_rows(layer.neuron),
        [packed_synapse(synapse, isa) for synapse in layer.synapses],
        [channel_rows(identity.value, channels)[0] for identity in layer.identities],
        None if layer.gain is None else channel_rows(layer.gain, channels),
        None if layer.bias is None else channel_rows(layer.bias, channels),
    )

"""One call of a layer: chooses events or dense for each synapse, then calls the C++ layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from steadyspike.deploy.runtime.native_layer import (
    IdentitySource,
    LayerShape,
    NumberSource,
    Source,
    SpikeConvSource,
    run_layer,
)
from steadyspike.deploy.runtime.packed_constants import LayerConstants, PackedSynapse
from steadyspike.deploy.runtime.values import Bits, Value, as_image, from_memory, to_memory
from steadyspike.kernels.conv.call import instruction_set
from steadyspike.kernels.conv.rule import COSTS, Costs, forward_by_events

Way = Literal["auto", "events", "dense"]
WAYS = ("auto", "events", "dense")
Read = Callable[[str], Value]


class NotANumber(ArithmeticError):
    """A potential is NaN, which bits cannot represent."""


def numbers_of(value: Value) -> Tensor:
    return value.numbers if isinstance(value, Bits) else value


def bits_of(value: Value) -> Bits:
    assert isinstance(value, Bits)
    return value


def costs_here() -> Costs:
    """Returns the costs for this machine's instruction set.

    Weights are packed once, before any call, and a layer is called in any case.
    """
    return replace(COSTS[instruction_set()], weight=0.0, call=0.0)


def run(
    constants: LayerConstants, steps: int, samples: int, read: Read, way: Way, costs: Costs, isa: int
) -> tuple[Value, list[str]]:
    """Returns the layer's spikes or numbers, and for each synapse whether it ran by events.

    ``read(name)`` returns a node's value.
    """
    layer = constants.layer
    sources: list[Source] = []
    ways = []
    for packed in constants.synapses:
        if _by_events(packed, steps * samples, read, way, costs):
            assert packed.packed is not None
            geometry = packed.event_geometry(steps * samples)
            words = (bits_of(read(name)).words for name in packed.synapse.writers)
            sources += [SpikeConvSource(w, geometry, packed.packed) for w in words]
            ways.append("events")
        else:
            sources.append(NumberSource(_dense(packed, read(packed.synapse.dense), layer.gain)))
            ways.append("dense")
    for identity, values in zip(layer.identities, constants.identities):
        sources.append(IdentitySource(bits_of(read(identity.writer)).words, values))
    for number in layer.numbers:
        values = numbers_of(read(number.name))
        sources.append(NumberSource(to_memory(values if number.factor is None else values * number.factor)))
    channels, rows, columns = as_image(layer.node.shape)
    done = run_layer(
        LayerShape(samples, steps, rows, columns, channels),
        sources,
        constants.neuron,
        gain=constants.gain,
        bias=constants.bias,
        isa=isa,
    )
    if done is None:
        raise NotANumber(layer.node.name)
    out, fired = done
    if out.dtype == torch.int64:
        return Bits(out, layer.node.shape, fired), ways
    return from_memory(out, layer.node.shape), ways


def _by_events(packed: PackedSynapse, images: int, read: Read, way: Way, costs: Costs) -> bool:
    if packed.packed is None:
        return False
    if way != "auto":
        return way == "events"
    spikes = [bits_of(read(name)) for name in packed.synapse.writers]
    count = sum(s.counted for s in spikes)
    rows, columns = packed.synapse.pool
    # The dense way convolves the pooled image, so it has less to do than the geometry of the events suggests.
    if rows * columns > 1:
        costs = replace(costs, dense=costs.dense / (rows * columns))
    return forward_by_events(packed.event_geometry(images), count, costs, noted=True)


def _dense(packed: PackedSynapse, value: Value, gain: Tensor | None) -> Tensor:
    """Computes the convolution of numbers by torch, [B, T, rows, columns, C]."""
    s = packed.synapse
    x = to_memory(numbers_of(value))
    samples, steps = x.shape[:2]
    images = x.flatten(0, 1).permute(0, 3, 1, 2)
    y = torch.conv2d(images, packed.weight, None, s.stride, s.padding, s.dilation, s.groups)
    y = y.permute(0, 2, 3, 1).contiguous().unflatten(0, (samples, steps))
    if gain is not None:
        y = y * gain[:steps].view(-1 if gain.ndim == 2 else 1, 1, 1, y.shape[-1])
    return y

"""Residual streams that are sums of spikes: who writes to them, and one threshold for all writers.

In a SEW network with TrSG the stream is sum_i V_i S_i. It is an integer count times one number, and folds into the next
weights exactly, only if all V_i of a stream are the same parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from torch import nn

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.net import SpikingNet


@runtime_checkable
class StreamBlock(Protocol):
    """A block whose neurons write spikes to a residual stream."""

    starts_stream: bool

    def stream_writers(self) -> list[str]: ...


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested Sequentials in the order they run."""
    if isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _layers(child, f"{prefix}.{name}")
    else:
        yield prefix, module


def find_streams(net: SpikingNet) -> list[list[str]]:
    """Names of the neurons that write to each stream, in order; blocks say theirs by ``stream_writers()``.

    A stream starts at a plain conv-norm-spike layer (the stem, for the first) or at a block with ``starts_stream``, and
    grows by the blocks behind it.
    """
    streams = [["stem.lif"]]
    for name, layer in _layers(net.body, "body"):
        if isinstance(layer, ConvNormLIF):
            streams.append([f"{name}.lif"])
        elif isinstance(layer, StreamBlock):
            if layer.starts_stream:
                streams.append([])
            streams[-1] += [f"{name}.{writer}" for writer in layer.stream_writers()]
    return [s for s in streams if len(s) > 1]


def tie_thresholds(layers: Iterable[nn.Module]) -> None:
    """All ``layers`` share the threshold parameter ``k`` of the first: one object, also for optimizers and copies."""
    shared: nn.Parameter | None = None
    for layer in layers:
        k = getattr(layer, "k", None)
        if not isinstance(k, nn.Parameter):
            raise ValueError(f"{type(layer).__name__} has no threshold parameter k that could be tied")
        shared = k if shared is None else shared
        if k.shape != shared.shape:
            raise ValueError(f"thresholds of shapes {list(shared.shape)} and {list(k.shape)} cannot be tied")
        layer.k = shared


def set_streams(net: SpikingNet, *, tie: bool) -> None:
    """Fills in ``net.streams`` and, if asked, ties the thresholds of each."""
    net.streams = find_streams(net)
    if tie:
        for names in net.streams:
            tie_thresholds([net.get_submodule(name) for name in names])

"""Residual streams that are sums of spikes: finds the neurons that write to them, and ties their thresholds.

In a SEW network with TrSG the stream is sum_i V_i S_i. If all V_i of a stream are the same parameter, the stream is an
integer count times one number. Only then can it be folded exactly into the next weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.net import SpikingNet
from steadyspike.nn.neuron import Neuron


@runtime_checkable
class StreamBlock(Protocol):
    """A block whose neurons write spikes to a residual stream."""

    starts_stream: bool

    def stream_writers(self) -> list[str]: ...


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Returns the layers of nested Sequentials, in the order in which they run."""
    if isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _layers(child, f"{prefix}.{name}")
    else:
        yield prefix, module


def find_streams(net: SpikingNet) -> list[list[str]]:
    """The names of the neurons that write to each stream, in order; ``stream_writers()`` of a block lists its own.

    A stream starts at a plain conv-norm-spike layer (the first one is the stem) or at a block with ``starts_stream``.
    The blocks that follow write to it.
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
    """Makes all ``layers`` share the threshold parameter of the first layer, as one object.

    Fixed thresholds need not be tied, but they must be equal.
    """
    first: Tensor | None = None
    for layer in layers:
        name, v = _threshold_name(layer), _threshold_value(layer)
        if first is None:
            first = v
        elif v.shape != first.shape:
            raise ValueError(f"thresholds of shapes {list(first.shape)} and {list(v.shape)} cannot be tied")
        if name is not None:
            setattr(layer, name, first)
        elif not v.is_meta and not torch.equal(v, first):
            raise ValueError(f"fixed thresholds {first.tolist()} and {v.tolist()} cannot be tied; make them equal")


def _threshold_name(layer: nn.Module) -> str | None:
    """Returns the name of the parameter from which V is computed; None if V is fixed."""
    name = getattr(layer, "threshold_name", None)
    if name is None and (not isinstance(layer, Neuron) or layer.threshold.requires_grad):
        raise ValueError(
            f"the threshold of {type(layer).__name__} cannot be tied: it has no threshold_name (its parameter's name)"
        )
    return name


def _threshold_value(layer: nn.Module) -> Tensor:
    """Returns the parameter from which V is computed, or the fixed V."""
    value = getattr(layer, _threshold_name(layer) or "threshold")
    assert isinstance(value, Tensor)
    return value


def set_streams(net: SpikingNet, *, tie: bool) -> None:
    """Sets ``net.streams``.

    tie: also tie the thresholds of each stream; they stay tied when a state dict is loaded
    """
    net.streams, net.streams_tied = find_streams(net), tie
    if tie:
        _tie_streams(net)
        net.register_load_state_dict_pre_hook(_refuse_untied)
        net.register_load_state_dict_post_hook(_tie_streams)


def _tie_streams(net: nn.Module, *loaded: object) -> None:
    """Ties the thresholds of each stream.

    Also used as a hook, because ``load_state_dict(assign=True)`` separates parameters.
    """
    assert isinstance(net, SpikingNet)
    for names in net.streams:
        tie_thresholds([net.get_submodule(name) for name in names])


def _refuse_untied(net: nn.Module, state: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
    """A hook that reports a state dict with different thresholds in one stream: they cannot become one parameter."""
    assert isinstance(net, SpikingNet)
    errors: list[str] = rest[-1]
    for names in net.streams:
        keys = [f"{prefix}{name}.{_threshold_name(net.get_submodule(name))}" for name in names]
        values = [state[key] for key in keys if key in state]
        if any(not torch.equal(value, values[0]) for value in values):
            errors.append(
                f"the thresholds of the stream {', '.join(names)} differ in this state, but this network has one "
                "parameter for all of them; load it into a network without tie_stream_threshold"
            )

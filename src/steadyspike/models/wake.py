"""`wake`: lowers the thresholds of layers that never fire, until they fire."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.models.net import SpikingNet
from steadyspike.nn.lif import LIF
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.nn.neurons import IF

_SAMPLES = 1_000_000


def _first_silent(model: nn.Module, x: Tensor) -> tuple[str, Tensor] | None:
    """The first layer, in call order, that never fires on ``x``: its name and a sample of its membrane potentials."""
    silent: list[tuple[str, Tensor]] = []

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not silent and result.m is not None and not result.out.any():
                m = result.m.flatten()
                silent.append((name, m[:: max(1, m.numel() // _SAMPLES)].float()))

        return Tap(see, membrane=True)

    with tapped(model, "wake", make):
        model(x)
    return silent[0] if silent else None


def _exceeded_by(m: Tensor, rate: float) -> float:
    """Returns a positive number that about ``rate`` of the potentials exceed; 0 if no potential is positive."""
    threshold = m.quantile(1 - rate)
    positive = m[m > 0]
    if threshold <= 0 and len(positive):
        threshold = positive.median()
    return max(float(threshold), 0.0)


def _layer(model: nn.Module, name: str) -> Neuron:
    """Returns the neuron layer ``name``, whose threshold can be lowered."""
    layer = model.get_submodule(name)
    if not isinstance(layer, (LIF, IF)):
        raise ValueError(
            f"layer '{name}' never fires, but it is a {type(layer).__name__}, and only thresholds of LIF and IF can be "
            "lowered; enlarge the weights before it"
        )
    return layer


def _tied_to(model: nn.Module, name: str) -> list[str]:
    """Returns the layers whose threshold must equal that of layer ``name``, including this layer.

    Learned thresholds that are tied are one parameter. Fixed thresholds are separate numbers that must stay equal.
    """
    k = _layer(model, name).constant_parameter("threshold")
    if k is not None:
        return [other for other, layer in neurons(model).items() if getattr(layer, "k", None) is k]
    for prefix, net in model.named_modules():
        if isinstance(net, SpikingNet) and net.streams_tied:
            streams = ([f"{prefix}.{writer}" if prefix else writer for writer in stream] for stream in net.streams)
            tied = next((stream for stream in streams if name in stream), None)
            if tied is not None:
                return tied
    return [name]


def _cannot(model: nn.Module, name: str, m: Tensor, changed: list[str]) -> RuntimeError:
    """Builds the error with the reason why layer ``name`` cannot be made to fire."""
    tied = [n for n in changed if len(_tied_to(model, n)) > 1]
    reason = f"its potentials reach only {m.max():.3g}"
    if name in changed and tied:
        reason = (
            f"it becomes silent again when the tied threshold of '{tied[0]}' is lowered, because the values in its "
            "stream (V*S) become smaller with V; put norms before the neurons, enlarge the weights "
            "(models.weight_init.fire), or wake the network without tie_stream_threshold"
        )
    return RuntimeError(f"layer '{name}' cannot be woken: {reason}")


@torch.no_grad()
def wake(model: nn.Module, x: Tensor, rate: float = 0.05) -> dict[str, float]:
    """Gives every layer that never fires on the batch ``x`` a threshold that about ``rate`` of its potentials exceed.

    Layers are changed one after the other, because a layer that never fires also silences the layers after it. Layers
    that fire are not changed, unless their threshold is tied to one that is lowered. If fewer than ``rate`` of the
    potentials are positive, half of the positive ones exceed the threshold. Returns the new thresholds by the names of
    the layers that were silent.
    The forwards run on a copy in training mode, so statistics do not change. If a layer cannot be made to fire, the
    model does not change at all.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    probe = copy.deepcopy(model).train()
    changed: list[str] = []
    while (silent := _first_silent(probe, x)) is not None:
        name, m = silent
        threshold = _exceeded_by(m, rate)
        if name in changed or not threshold > 0:
            raise _cannot(probe, name, m, changed)
        for tied in _tied_to(probe, name):
            _layer(probe, tied).set_constant("threshold", [threshold])
        changed.append(name)
    everything = dict.fromkeys(tied for name in changed for tied in _tied_to(model, name))
    for name in everything:
        _layer(model, name).set_constant("threshold", _layer(probe, name).threshold)
    return {name: float(_layer(model, name).threshold.mean()) for name in changed}

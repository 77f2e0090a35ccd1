"""`save_memory`: changes a model so that training it needs less memory."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from steadyspike.core.torch_private import remove_forward_hooks
from steadyspike.nn.memory.norm import NotedTDBN
from steadyspike.nn.memory.notes import note_spikes, plain_only, scan_current
from steadyspike.nn.memory.saver import SpikeSaver
from steadyspike.nn.neuron import neurons
from steadyspike.nn.norm.tdbn import TDBN

Model = TypeVar("Model", bound=nn.Module)


def save_memory(model: Model, *, currents: bool = True, spikes: bool = True) -> Model:
    """Changes ``model`` in place so that training keeps less for the backward, and returns it.

    Checkpoints and gradients stay the same. `restore_memory` undoes the change.
    currents: a neuron after a tdBN keeps the convolution's output instead of its input current, which the backward
        computes again: one tensor per conv-norm-spike layer instead of two. Other norms are not changed.
    spikes: keep the spikes that a layer needs for its backward as bits, 1/32 of float32.
    """
    restore_memory(model)
    layers = list(neurons(model).values())
    spiking = [neuron for neuron in layers if neuron.spiking]
    if currents:
        for module in model.modules():
            if type(module) is TDBN:
                module.__class__ = NotedTDBN
        for neuron in layers:
            neuron.lif_scan = scan_current
        for neuron in spiking:
            neuron.register_forward_hook(_note)
    if spikes:
        saver = SpikeSaver()
        model.register_forward_pre_hook(saver.enter, prepend=True)
        model.register_forward_hook(saver.leave, always_call=True)
        for neuron in spiking:
            neuron.register_forward_hook(saver.remember)
    return model


def _note(neuron: nn.Module, args: Any, out: Tensor) -> None:
    if not plain_only():
        note_spikes(out)


_note.only_output = True  # type: ignore[attr-defined]  # for norm_neuron: it does not look at the layer's input


def restore_memory(model: Model) -> Model:
    """Undoes `save_memory` on ``model``, in place, and returns it."""
    for module in model.modules():
        if type(module) is NotedTDBN:
            module.__class__ = TDBN  # type: ignore[assignment]
        if module.__dict__.get("lif_scan") is scan_current:
            del module.lif_scan
        remove_forward_hooks(module, _is_ours)
    return model


def _is_ours(hook: Any) -> bool:
    return hook is _note or isinstance(getattr(hook, "__self__", None), SpikeSaver)

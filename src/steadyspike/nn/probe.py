"""`probe`: records the values inside neuron layers during a forward.

    with ss.probe(model, "layer1.*", record=("m", "spikes")) as seen:
        model(x)
    seen["layer1.0.neuron"].m          # [T, B, ...]

A probe does not change outputs, gradients or statistics, and nothing stays on the model after the ``with`` block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, per_channel, reset
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.spikes.note import counted_spikes
from steadyspike.nn.checkpoint import recomputing
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap, neurons

RECORDS = ("current", "m", "u", "spikes", "rate")


@dataclass(frozen=True)
class LayerRecord:
    """The record of one forward of one layer; what was not requested is None.

    current: input I
    m: potential before the reset
    u: potential after the reset
    spikes: S in {0, 1}
    rate: mean of S per step, [T], from the scan's own count if it has one

    All but rate are [T, B, ...]. A readout has neither spikes nor rate. MPBN's m is the membrane before its norm.
    """

    layer: Neuron
    current: Tensor | None = None
    m: Tensor | None = None
    u: Tensor | None = None
    spikes: Tensor | None = None
    rate: Tensor | None = None


class Recording(Mapping[str, LayerRecord]):
    """Records by layer name: ``recording[name]`` is the last forward, ``recording.all(name)`` is a list of all."""

    def __init__(self) -> None:
        self._calls: dict[str, list[LayerRecord]] = {}

    def add(self, name: str, record: LayerRecord) -> None:
        self._calls.setdefault(name, []).append(record)

    def all(self, name: str) -> list[LayerRecord]:
        """The records of every forward of a layer."""
        return list(self._calls[name])

    def calls(self) -> list[LayerRecord]:
        """Returns the records of every forward of every layer; a layer that is used twice in a network has two."""
        return [record for records in self._calls.values() for record in records]

    def joined(self) -> Recording:
        """The forwards of every layer as one, along time: for a model that is called once per time step."""
        result = Recording()
        for name, records in self._calls.items():
            columns = {what: [getattr(record, what) for record in records] for what in RECORDS}
            tensors = {what: None if None in parts else torch.cat(parts) for what, parts in columns.items()}
            result.add(name, LayerRecord(records[-1].layer, **tensors))
        return result

    def __getitem__(self, name: str) -> LayerRecord:
        if name not in self._calls:
            raise KeyError(f"no forward of {name!r} was recorded, only of {', '.join(self._calls) or 'no layer'}")
        return self._calls[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def probe(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    *,
    record: str | Sequence[str] = RECORDS,
    graph: bool = False,
) -> Iterator[Recording]:
    """Records the neuron layers of ``model`` while the block runs.

    layers: names or patterns (``"layer1.*"``) as in ``model.named_modules()``; None: all neuron layers
    record: some of ``"current"``, ``"m"``, ``"u"``, ``"spikes"``, ``"rate"``
    graph: keep the tensors in the autograd graph, so that a loss can use them; they stay in memory until the backward.
        This does not work under activation checkpointing: torch then finds saved tensors that the recomputation does
        not make, or no graph at all. A recomputed forward is never recorded.
    """
    fields = (record,) if isinstance(record, str) else tuple(record)
    for what in fields:
        if what not in RECORDS:
            raise ValueError(f"cannot record {what!r}; known: {', '.join(RECORDS)}")
    recording = Recording()

    def make(name: str) -> Tap:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            # Activation checkpointing runs a forward twice; for the reader of the record it is still one forward.
            if not recomputing():
                with torch.set_grad_enabled(graph and torch.is_grad_enabled()):
                    recording.add(name, _record(layer, x, result, fields, graph))

        return Tap(see, membrane="m" in fields or "u" in fields, current="current" in fields, potential=False)

    # The id makes the key unique, so that probes can be nested.
    with tapped(model, f"probe {id(recording)}", make, only=chosen_layers(model, layers)):
        yield recording


def chosen_layers(model: nn.Module, layers: str | Sequence[str] | None) -> list[str]:
    """Returns the names of the neuron layers that match; raises ValueError for a pattern that matches none."""
    all_names = list(neurons(model))
    if layers is None:
        return all_names
    patterns = [layers] if isinstance(layers, str) else list(layers)
    chosen = []
    for pattern in patterns:
        matching = [name for name in all_names if fnmatchcase(name, pattern)]
        if not matching:
            raise ValueError(f"no neuron layer matches {pattern!r}; known: {', '.join(all_names) or 'none'}")
        chosen += [name for name in matching if name not in chosen]
    return chosen


def after_reset(layer: Neuron, m: Tensor, spikes: Tensor | None) -> Tensor:
    """Returns U from M and S (None: a readout, which does not reset), all [T, B, ...]."""
    v = per_channel(layer.threshold, m.ndim - 1).to(m.dtype)
    return m if spikes is None else reset(m, spikes.to(m.dtype), v, layer.spec)


class _CountedRate(torch.autograd.Function):
    """The mean of S = O / V per time step, [T], from the scan's own count of spikes.

    O is not read, neither here nor in the backward, whose gradient for O is one number per step.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, v: Tensor, counts: Tensor) -> Tensor:
        rate = counts.to(v.dtype) / out[0].numel()
        ctx.shape, ctx.dtype = out.shape, out.dtype
        ctx.save_for_backward(v, rate)
        return rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        v, rate = ctx.saved_tensors
        each = (grad / (v * ctx.shape[1:].numel())).to(ctx.dtype)
        by_out = each.view(-1, *[1] * (len(ctx.shape) - 1)).expand(ctx.shape)
        return by_out, -(grad * rate).sum().view(v.shape) / v, None


def _rate(layer: Neuron, out: Tensor) -> Tensor:
    """Returns the mean of S per time step, [T], with the gradient of `Neuron.spikes`, in float32 or better."""
    dtype = torch.promote_types(out.dtype, torch.float32)  # half precision has only two or three digits
    v = layer.threshold.to(dtype) if layer.spec.family == "trsg" else out.new_ones(1, dtype=dtype)
    eager = not is_transformed() and not torch.compiler.is_compiling()
    counts = counted_spikes(out) if eager and v.numel() == 1 and type(layer).spikes is Neuron.spikes else None
    if counts is not None:
        rate: Tensor = _CountedRate.apply(out, v, counts)
        return rate
    return layer.spikes(out).to(dtype).flatten(1).mean(1)


def _record(layer: Neuron, x: Tensor, result: ScanResult, fields: tuple[str, ...], graph: bool) -> LayerRecord:
    """Returns the record of one scan, with the tensors that ``fields`` names."""
    spikes = layer.spikes(result.out) if layer.spiking and {"spikes", "u"} & set(fields) else None
    tensors: dict[str, Tensor | None] = {"current": x, "m": result.m, "spikes": spikes}
    if "rate" in fields and layer.spiking:
        tensors["rate"] = _rate(layer, result.out)
    # Kernels return M of all steps, but U of the last step only.
    if "u" in fields and result.m is not None:
        tensors["u"] = after_reset(layer, result.m, spikes)
    kept = {name: tensors.get(name) for name in fields}
    if not graph:
        kept = {name: None if value is None else value.detach() for name, value in kept.items()}
    return LayerRecord(layer, **kept)

"""Pictures of spikes and membranes, from `ss.probe`: raster, traces, firing rates. Needs matplotlib.

    with ss.probe(model) as seen:
        model(x)
    ss.plot.raster(seen)                # every layer, one sample
    ss.plot.traces(seen["fire1"])       # membrane, threshold and spikes of single neurons
    ss.plot.rates(seen)                 # firing rate of every layer at every step

Each function draws into ``ax`` or a new pyplot figure and returns the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadyspike.nn.probe import LayerRecord, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["raster", "rates", "traces"]


def __dir__() -> list[str]:
    return sorted(__all__)


# Okabe and Ito's palette: the colours can be distinguished with all kinds of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def raster(
    spikes: Recording | LayerRecord | Tensor, *, sample: int = 0, neurons: int = 200, ax: Axes | None = None
) -> Any:
    """Draws a dot for each spike of one sample, time to the right and neurons upwards. Returns the axes.

    spikes: a recording of `ss.probe`, one layer's record, or a tensor [T, B, ...] in which every value other than 0 is
        a spike. A recording gives one panel per spiking layer, and an array of axes is returned.
    sample: which sample of the batch.
    neurons: draw at most this many neurons of a layer, evenly spaced.
    ax: axes to draw into; only for a single layer.
    """
    if not isinstance(spikes, Mapping):
        return _raster(_spikes_of(spikes), sample, neurons, ax or _new_axes(1)[0])
    layers = {name: record for name, record in spikes.items() if record.spikes is not None}
    if not layers:
        raise ValueError('the recording holds no spikes; use ss.probe(model, record="spikes")')
    if ax is not None:
        raise ValueError(f"ax is for one layer, the recording has {len(layers)}; give one of them, such as seen[name]")
    axes = _new_axes(len(layers))
    for axis, (name, record) in zip(axes, layers.items()):
        _raster(_spikes_of(record), sample, neurons, axis)
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlabel("time step" if axis is axes[-1] else "")
    return axes


def traces(record: LayerRecord, *, sample: int = 0, neurons: int | Sequence[int] = 3, ax: Axes | None = None) -> Axes:
    """Draws the membrane M[t] of single neurons, their thresholds V and their spikes. Returns the axes.

    record: one layer of `ss.probe`, with ``"m"`` recorded.
    neurons: indices into the flattened neurons of a sample, or a number: then the neurons of the sample that spike
    most.
    """
    if isinstance(record, Recording):
        raise TypeError(f"traces draws one layer, got the recording of {', '.join(record)}; use recording[name]")
    if record.m is None:
        raise ValueError('the record holds no membrane; use ss.probe(model, record=("m", "spikes"))')
    membrane = _one_sample(record.m, sample)
    spikes = torch.zeros_like(membrane) if record.spikes is None else _one_sample(record.spikes, sample)
    chosen = (
        spikes.sum(0).argsort(descending=True, stable=True)[:neurons].tolist() if isinstance(neurons, int) else neurons
    )
    thresholds = _threshold_of_each(record, sample)
    axis: Axes = ax or _new_axes(1, height=3.0)[0]
    steps = range(1, len(membrane) + 1)
    for index, colour in zip(chosen, COLOURS * (1 + len(chosen) // len(COLOURS))):
        axis.plot(steps, membrane[:, index], color=colour, marker=".", label=f"neuron {index}")
        fired = [t for t in steps if spikes[t - 1, index]]
        axis.plot(fired, membrane[[t - 1 for t in fired], index], "^", color=colour, markersize=8)
        if thresholds is not None:
            axis.axhline(float(thresholds[index]), color=colour, linestyle="--", linewidth=0.8)
    axis.set_xlabel("time step")
    axis.set_ylabel("membrane M (dashed: V)")
    axis.legend(frameon=False, fontsize=8)
    _whole_steps(axis)
    return axis


def rates(recording: Recording, *, ax: Axes | None = None) -> Axes:
    """Draws the firing rate of every spiking layer at every time step, averaged over the batch. Returns the axes."""
    axis: Axes = ax or _new_axes(1, height=3.0)[0]
    layers = {name: record for name, record in recording.items() if record.rate is not None}
    if not layers:
        raise ValueError(
            'the recording holds no firing rates; use ss.probe(model, record="rate") or record nothing else'
        )
    styles = ("-", "--", "-.", ":")
    for number, (name, record) in enumerate(layers.items()):
        assert record.rate is not None
        values = record.rate.float().cpu()
        # The seventh layer has the first colour again, with another line style.
        turn, colour = divmod(number, len(COLOURS))
        axis.plot(range(1, len(values) + 1), values, styles[turn % len(styles)], color=COLOURS[colour], label=name)
    axis.set_xlabel("time step")
    axis.set_ylabel("firing rate")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8)
    _whole_steps(axis)
    return axis


def _raster(spikes: Tensor, sample: int, most: int, axis: Axes) -> Axes:
    events = _one_sample(spikes, sample)
    count = events.shape[1]
    # Evenly spaced neurons show the whole layer; the first ones would show a corner of the first channel.
    shown = torch.linspace(0, count - 1, min(most, count)).round().long()
    steps, rows = events[:, shown].nonzero(as_tuple=True)
    axis.scatter(steps + 1, shown[rows], s=4, marker="|" if len(events) > 30 else "o", color=COLOURS[0], linewidths=0.8)
    axis.set_xlim(0.5, len(events) + 0.5)
    axis.set_ylim(-0.5 - 0.01 * count, count * 1.01)
    axis.set_ylabel("neuron" if len(shown) == count else f"neuron ({len(shown)} of {count})", fontsize=8)
    axis.set_xlabel("time step")
    _whole_steps(axis)
    return axis


def _spikes_of(layer: LayerRecord | Tensor) -> Tensor:
    spikes = layer if isinstance(layer, Tensor) else layer.spikes
    if spikes is None:
        raise ValueError('the record holds no spikes; use ss.probe(model, record="spikes")')
    if spikes.ndim < 3:
        raise ValueError(f"spikes must have the shape [T, B, ...], got {list(spikes.shape)}")
    return spikes


def _one_sample(values: Tensor, sample: int) -> Tensor:
    """Returns [T, neurons] of one sample of [T, B, ...]."""
    batch = values.shape[1]
    if not -batch <= sample < batch:
        raise IndexError(f"sample {sample} is not in the batch, which has {batch}")
    return values[:, sample].detach().float().cpu().flatten(1)


def _threshold_of_each(record: LayerRecord, sample: int) -> Tensor | None:
    """Returns V of every neuron of a sample, [neurons]; None for a readout, which has no threshold."""
    assert record.m is not None
    if not record.layer.spiking:
        return None
    threshold, shape = record.layer.threshold.detach().float().cpu(), record.m[0, sample].shape
    by_channel = threshold.reshape(-1, *[1] * (len(shape) - 1))  # one V, or one per channel: the first axis
    return by_channel.expand(shape).flatten()


def _new_axes(rows: int, height: float = 1.6) -> Any:
    """Returns an array of axes, one below the other, in a new pyplot figure."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(rows, 1, figsize=(6.4, max(2.4, rows * height)), squeeze=False, layout="constrained")
    return axes[:, 0]


def _whole_steps(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.spines[["top", "right"]].set_visible(False)

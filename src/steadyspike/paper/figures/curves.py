"""Lines and bars over configurations: accuracy, firing rate, training curves, thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.figures.style import (
    COLOURS,
    HATCHES,
    MARKERS,
    hide_rest,
    panels,
    step_colours,
    styled,
    whole_steps,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]


def grouped_bars(panels_of: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], groups: Sequence[str]) -> Figure:
    """Accuracy bars. Bars with one panel per key.

    Each series has a list of values per group; the bar shows their mean, and dots show the values.

    A group without a value has no bar but keeps its position.
    """
    with styled():
        rows = math.ceil(len(panels_of) / 2)
        columns = math.ceil(len(panels_of) / rows)
        figure, axes = panels(rows, columns, width=max(3.2, 1.0 * len(groups)), height=2.6, sharey=True)
        for axis, (title, series) in zip(axes.flat, panels_of.items()):
            width = 0.8 / max(len(series), 1)
            for i, (name, values) in enumerate(series.items()):
                places = np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width
                means = [float(np.mean(v)) if len(v) else np.nan for v in values]
                axis.bar(
                    places,
                    means,
                    width * 0.9,
                    color=COLOURS[i],
                    hatch=HATCHES[i % len(HATCHES)],
                    label=name,
                    alpha=0.85,
                )
                for position, own in zip(places, values):
                    axis.plot([position] * len(own), own, "k.", markersize=3)
            axis.set_xticks(range(len(groups)), groups)
            axis.set_title(title)
            axis.grid(axis="x", visible=False)
        for axis in axes[:, 0]:
            axis.set_ylabel("test accuracy (%)")
        hide_rest(axes.flat[len(panels_of) :])
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper")
        return figure


def accuracy_by_rate(series: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draws points (firing rate, accuracy) of every method, connected in order of rate."""
    with styled():
        figure, axes = panels(1, 1, width=4.5, height=3.0)
        axis = axes[0, 0]
        for i, (name, points) in enumerate(series.items()):
            ordered = sorted(points)
            x, y = [p[0] for p in ordered], [p[1] for p in ordered]
            axis.plot(x, y, color=COLOURS[i], marker=MARKERS[i], label=name)
        axis.set_xlabel("mean firing rate")
        axis.set_ylabel("test accuracy (%)")
        axis.legend()
        return figure


def training_curves(curves: Mapping[str, Mapping[str, Array]]) -> Figure:
    """Draws loss and accuracy over epochs: {"AS-SG": {"loss": [E], "accuracy": [E]}}."""
    with styled():
        figure, axes = panels(1, 2, width=3.8, height=2.8)
        for i, (name, one) in enumerate(curves.items()):
            for axis, key in zip(axes.flat, ("loss", "accuracy")):
                style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
                axis.plot(range(1, len(one[key]) + 1), one[key], label=name, **style)
        for axis, title in zip(axes.flat, ("training loss", "training accuracy (%)")):
            axis.set_title(title)
            whole_steps(axis, "epoch")
        axes.flat[0].legend()
        return figure


def paths(panels_of: Mapping[str, Mapping[str, Array]], label: str) -> Figure:
    """Draws one panel per key, one line per layer over epochs, dark to light from the first layer to the last."""
    with styled():
        figure, axes = panels(1, len(panels_of), width=4.0, height=3.0)
        for axis, (title, layers) in zip(axes.flat, panels_of.items()):
            for colour, (name, values) in zip(step_colours(len(layers)), layers.items()):
                axis.plot(range(1, len(values) + 1), values, color=colour, label=name)
            axis.set_title(title)
            axis.set_ylabel(label)
            whole_steps(axis, "epoch")
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper", fontsize=6)
        return figure


def layer_values(panels_of: Mapping[str, Mapping[str, Sequence[float]]], layers: Mapping[str, Sequence[str]]) -> Figure:
    """Draws one panel per network: V, tau and running mean of every layer, as markers in the order of the layers."""
    with styled():
        figure, axes = panels(1, len(panels_of), width=4.6, height=3.2)
        for axis, (title, values) in zip(axes.flat, panels_of.items()):
            for i, (name, row) in enumerate(values.items()):
                axis.plot(range(len(row)), row, color=COLOURS[i], marker=MARKERS[i], label=name)
            axis.set_xticks(range(len(layers[title])), layers[title], rotation=70, ha="right", fontsize=6)
            axis.set_title(title)
            axis.set_ylabel("after training (tau: steps)")
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper")
        return figure

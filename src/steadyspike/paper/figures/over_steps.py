"""Distributions per time step, distances between them, firing rates and predicted classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.figures.style import (
    COLOURS,
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


Reach = tuple[float, float]


def step_distributions(shares: Mapping[str, Array], label: str, reach: Reach | Mapping[str, Reach]) -> Figure:
    """Draws one panel per key, with a curve per time step.

    shares: [T, bins + 2] on equal bins of ``reach``, which is one value or one per key.

    The first and the last bin hold values outside; the panel's title states their share. If a layer has no neuron that
    fired, its shares are NaN.
    """
    with styled():
        columns = min(4, len(shares))
        rows = math.ceil(len(shares) / columns)
        figure, axes = panels(rows, columns, sharex=not isinstance(reach, Mapping))
        for axis, (name, steps) in zip(axes.flat, shares.items()):
            bins = steps.shape[1] - 2
            axis.set_yticks([])
            axis.set_xlabel(label)
            axis.set_title(name)
            if np.isnan(steps).any():
                axis.text(0.5, 0.5, "silent: no neuron fired", ha="center", transform=axis.transAxes)
                continue
            edges = np.linspace(*(reach[name] if isinstance(reach, Mapping) else reach), bins + 1)
            density = steps[:, 1:-1] / (edges[1] - edges[0])
            for t, (colour, curve) in enumerate(zip(step_colours(len(steps)), density), 1):
                axis.stairs(curve, edges, color=colour, label=f"t = {t}")
            outside = 100 * float((steps[:, 0] + steps[:, -1]).max())
            axis.set_title(name + (f" ({outside:.0f} % outside)" if outside >= 1 else ""))
        drawn = [axis for axis in axes.flat[: len(shares)] if axis.patches]
        if drawn:
            figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside right upper")
        for axis in axes[:, 0]:
            axis.set_ylabel("density")
        hide_rest(axes.flat[len(shares) :])
        return figure


def distances(
    curves: Mapping[str, Array],
    *,
    floor: float | None = None,
    title: str = "",
    label: str = "",
    top: float | None = None,
) -> Figure:
    """Draws the total variation distance per time step, one curve per key: [T]; a dashed line for the noise floor.

    top: of the axis
    """
    with styled():
        figure, axes = panels(1, 1, width=6.0, height=3.0)
        axis = axes[0, 0]
        many = len(curves) > len(COLOURS)
        colours = step_colours(len(curves)) if many else COLOURS
        for i, (name, curve) in enumerate(curves.items()):
            marker = "" if many else MARKERS[i % len(MARKERS)]
            axis.plot(range(1, len(curve) + 1), curve, color=colours[i], marker=marker, label=name)
        if floor is not None:
            axis.axhline(floor, color="#7f7f7f", linestyle="--", linewidth=1, label="noise floor")
        axis.set_ylim(0, top)
        axis.set_ylabel(label or "total variation against the last step")
        axis.set_title(title)
        figure.legend(loc="outside right upper", fontsize=6 if many else 8)
        whole_steps(axis)
        return figure


def firing_rates(panels_of: Mapping[str, Mapping[str, Array]]) -> Figure:
    """Draws one panel per network, one curve per layer: firing rate at every time step, on one scale."""
    with styled():
        figure, axes = panels(1, len(panels_of), width=3.6, height=2.8, sharey=True)
        for axis, (title, layers) in zip(axes.flat, panels_of.items()):
            for i, (name, rates) in enumerate(layers.items()):
                style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
                axis.plot(range(1, len(rates) + 1), rates, label=name, **style)
            axis.set_title(title)
            whole_steps(axis)
        axes.flat[0].set_ylabel("firing rate")
        axes.flat[0].set_ylim(bottom=0)  # after all curves: setting a limit stops the automatic scaling of shared axes
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
        return figure


def predicted_classes(panels_of: Mapping[str, Array], classes: Sequence[str]) -> Figure:
    """Draws one panel per network: the share of samples that each step alone predicts as each class, [T, classes]."""
    with styled():
        figure, axes = panels(1, len(panels_of), width=3.6, height=2.8, sharey=True)
        highest = max(float(shares.max()) for shares in panels_of.values())
        for axis, (title, shares) in zip(axes.flat, panels_of.items()):
            image = axis.imshow(shares.T, aspect="auto", cmap="viridis", vmin=0, vmax=highest, origin="lower")
            axis.set_yticks(range(len(classes)), classes, fontsize=7)
            axis.set_xticks(range(len(shares)), range(1, len(shares) + 1))
            axis.set_xlabel("time step")
            axis.set_title(title)
            axis.grid(visible=False)
        figure.colorbar(image, ax=list(axes.flat), label="share of samples")
        return figure


def bars_with_baseline(
    values: Mapping[str, float],
    baseline: float,
    label: str,
    baseline_label: str,
    missing: Mapping[str, str] | None = None,
) -> Figure:
    """Draws one bar per key in percent, and a line at chance level.

    missing: text instead of a bar for NaN
    """
    with styled():
        figure, axes = panels(1, 1, width=max(4.5, 0.35 * len(values)), height=3.0)
        axis = axes[0, 0]
        axis.bar(range(len(values)), [100 * v for v in values.values()], color=COLOURS[0])
        for position, (name, value) in enumerate(values.items()):
            if np.isnan(value):  # without a text, it would look like a bar of 0 %
                axis.text(position, 2, (missing or {}).get(name, "no value"), rotation=90, ha="center", fontsize=7)
        axis.axhline(100 * baseline, color=COLOURS[1], linestyle="--", label=baseline_label)
        axis.set_xticks(range(len(values)), list(values), rotation=60, ha="right", fontsize=7)
        axis.set_ylabel(label)
        axis.set_ylim(0, 105)
        axis.set_xlim(-0.6, len(values) - 0.4)  # also if the first or last key has no bar
        figure.legend(loc="outside upper center")
        return figure

"""Cosine matrices and projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.figures.style import COLOURS, DIVERGING, MARKERS, panels, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]


def cosines(panels_of: Mapping[str, Array], definition: str) -> Figure:
    """Draws one [T, T] matrix of cosines per panel on the scale -1..1, with the numbers.

    The title has the definition.
    """
    with styled():
        figure, axes = panels(1, len(panels_of), width=3.2, height=2.9)
        for axis, (title, matrix) in zip(axes.flat, panels_of.items()):
            image = axis.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
            for (i, j), value in np.ndenumerate(matrix):
                shade = "white" if abs(value) > 0.6 else "black"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
            steps = range(1, len(matrix) + 1)
            axis.set_xticks(range(len(matrix)), steps)
            axis.set_yticks(range(len(matrix)), steps)
            axis.set_title(title)
            axis.set_xlabel("time step")
            axis.grid(visible=False)
        figure.colorbar(image, ax=list(axes.flat), label="cosine")
        figure.suptitle(f"gradients by time step, definition: {definition}", fontsize=9)
        return figure


def projections(
    rows: Mapping[str, Sequence[Array]], labels: Array, names: Sequence[str], steps: Sequence[int]
) -> Figure:
    """Draws points [N, 2] per network (row) and time step (column), coloured by class; all panels have one scale."""
    with styled():
        figure, axes = panels(len(rows), len(steps), width=2.6, height=2.4, sharex=True, sharey=True)
        for row, (title, points) in zip(axes, rows.items()):
            for axis, step, own in zip(row, steps, points):
                for column, name in enumerate(names):
                    chosen = own[labels == column]
                    axis.scatter(
                        chosen[:, 0], chosen[:, 1], s=6, color=COLOURS[column], marker=MARKERS[column], label=name,
                        alpha=0.7, linewidths=0,
                    )  # fmt: skip
                axis.set_title(f"{title}, t = {step}")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside right upper", markerscale=1.5, title="class"
        )
        figure.supxlabel("first principal component", fontsize=9)
        figure.supylabel("second principal component", fontsize=9)
        return figure

"""The surrogate windows of the three families over a membrane distribution (figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.figures.style import COLOURS, panels, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]


def surrogate_windows(m: Array, density: Mapping[float, Array], windows: Mapping[float, Mapping[str, Array]]) -> Figure:
    """Draws one row per threshold V and one panel per family: dO/dM over M, and the membrane's density behind it.

    m [N]; density {V: [N]}; windows {V: {family: dO/dM [N]}}. Each panel shows the share of the membrane that gets a
    gradient.
    """
    with styled():
        families = list(next(iter(windows.values())))
        figure, axes = panels(len(windows), len(families), width=2.8, height=2.3)
        for row, (v, curves) in zip(axes, windows.items()):
            p = density[v] / density[v].sum()
            for i, (axis, family) in enumerate(zip(row, families)):
                gradient = curves[family]
                axis.fill_between(m, density[v] / density[v].max(), color="#bbbbbb", linewidth=0, label="membrane")
                right = axis.twinx()
                right.plot(m, gradient, color=COLOURS[i], label="gradient")
                right.fill_between(m, gradient, color=COLOURS[i], alpha=0.25, linewidth=0)
                right.set_ylim(0, max(1.1, 1.15 * float(gradient.max())))
                right.grid(visible=False)
                axis.set_ylim(bottom=0)
                axis.set_xlim(-1.2 * max(v, 0.5), 2.2 * max(v, 0.5))
                axis.axvline(v, color="black", linestyle=":", linewidth=1)
                inside = 100 * float(p[gradient > 0].sum())
                axis.set_title(f"{family}, V = {v:g}\nheight {gradient.max():.3g}, {inside:.0f} % inside")
                axis.set_yticks([])
                axis.set_xlabel("membrane potential M")
                if i == 0:
                    axis.set_ylabel("density of M (grey)")
                if i == len(families) - 1:
                    right.set_ylabel("dO/dM")
        return figure


def membrane_grid(low: float = -2.0, high: float = 4.0, cells: int = 1200) -> Array:
    """Returns the potentials at which windows are drawn: middles of cells, because edges would count as inside."""
    return low + (np.arange(cells) + 0.5) * (high - low) / cells

"""Style of all figures: colours that colour-blind readers can distinguish, sizes, and a function that makes figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyspike.report.run_figure import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, the darker ones first; every series also has its own marker or label.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "xx")
ORDERED = "viridis"  # for time steps and layers: dark to light, in order
DIVERGING = "RdBu_r"  # for cosines, -1 to 1
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # text is stored as text
    "svg.fonttype": "none",
}


@contextmanager
def styled() -> Iterator[None]:
    """Sets the style while a figure is made; afterwards the user's own settings are restored."""
    import matplotlib

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of its file ending: .png, .pdf or .svg; in the last two, text is stored as text."""
    with styled():
        save_figure(figure, path)


def panels(rows: int, columns: int, width: float = 3.0, height: float = 2.3, **options: Any) -> tuple[Figure, Any]:
    """Makes a figure of rows x columns panels; axes are an array [rows, columns]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def step_colours(count: int) -> list[Any]:
    """Returns colours of time steps or layers in order."""
    from matplotlib import colormaps

    return [colormaps[ORDERED](0.9 * i / max(count - 1, 1)) for i in range(count)]


def whole_steps(axis: Axes, label: str = "time step") -> None:
    """Puts whole numbers on the x axis."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axis.set_xlabel(label)


def hide_rest(axes: Sequence[Axes]) -> None:
    """Hides panels without content."""
    for axis in axes:
        axis.axis("off")

"""One figure of one or more runs, from their tables: curves, firing rates, thresholds and time constants."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.tables import read_table
from steadyspike.train.recipe.kinds import kind_of_columns, kind_of_result

# Okabe and Ito's colours, which can be distinguished with all kinds of colour vision; the line styles differ too.
_MOST_CLASSES = 8
_LOOKS = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"))


def _column(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) if row.get(name) else float("nan") for row in rows]


def draw_runs(runs: dict[str, RunFolder], path: Path) -> Path:
    """Draws up to four runs (label -> folder) into a PNG or SVG file, see `figure_of`."""
    return save_figure(figure_of(runs), path, dpi=110)


def figure_of(runs: dict[str, RunFolder]) -> Any:
    """A matplotlib figure of up to four runs (label -> folder).

    Thresholds and time constants of layers are those of the last run, which has the first colour.
    """
    if not 1 <= len(runs) <= len(_LOOKS):
        raise ValueError(f"a figure shows 1 to {len(_LOOKS)} runs, got {len(runs)}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = 2 + len(runs)
    figure = Figure(figsize=(3.75 * columns, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, columns)
    for look, (label, folder) in zip(_LOOKS[len(runs) - 1 :: -1], runs.items()):
        _curves(axes[0], label, folder, *look)
    kinds = [kind_of_result(f.read_json("result.json")["test"]) for f in runs.values()]
    kind = next((one for one in kinds if not one.classifies), kinds[0])
    name, unit = kind.measure.name, kind.measure.unit
    part = " or ".join(sorted({_evaluated_part(f) for f in runs.values()} - {""}))
    for axis, title, y in (
        (axes[0, 0], "training loss", "loss"),
        (axes[0, 1], f"{part} {name} at every epoch".strip(), unit),
        (axes[0, 2], f"test {name}", unit),
    ):
        axis.set_title(title)
        axis.set_xlabel(("class" if kind.breakdown else "time steps") if axis is axes[0, 2] else "epoch")
        axis.set_ylabel(y)
        axis.grid(alpha=0.25)
    for axis in axes[0, 3:]:
        axis.axis("off")
    for axis in (*axes[0, :2], *axes[1, len(runs) :]):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if len(runs) > 1:
        lines = axes[0, 0].get_legend_handles_labels()
        axes[0, 3].legend(*lines, loc="upper left", frameon=False, fontsize=12, handlelength=3)
    highest = max((max(_rates(f)[2], default=0.0) for f in runs.values()), default=1.0)
    for axis, (label, folder) in zip(axes[1], runs.items()):
        _heat(figure, axis, label, folder, highest)
    last_label, last = list(runs.items())[-1]
    _over_epochs(axes[1, len(runs)], last, "threshold", f"threshold V\n{last_label}")
    _over_epochs(axes[1, len(runs) + 1], last, "tau", f"time constant tau\n{last_label}")
    return figure


def _evaluated_part(folder: RunFolder) -> str:
    """The part of the data that was evaluated while the run trained, such as "validation"; "" without an epoch."""
    rows = read_table(folder.root / "metrics.csv")
    names = kind_of_columns(rows[0]).columns(rows[0]) if rows else []
    return next((name.partition("_")[0] for name in names if not name.startswith("train_")), "")


def _curves(axes: Any, label: str, folder: RunFolder, colour: str, style: str) -> None:
    rows = read_table(folder.root / "metrics.csv")
    epochs = _column(rows, "epoch")
    names = list(rows[0]) if rows else []  # none: the run ended in its first epoch
    test = folder.read_json("result.json")["test"]
    kind = kind_of_result(test)
    last = [name for name in kind.columns(names) if not name.startswith("train_")][-1:]
    look = {"color": colour, "linestyle": style, "linewidth": 2, "label": label}
    axes[0].plot(epochs, _column(rows, "train_loss"), **look)
    for name in last:  # epochs that were not evaluated leave no gap in the line
        there = [row for row in rows if row.get(name)]
        few = {"marker": "o", "markersize": 4} if len(there) < len(rows) else {}
        axes[1].plot(_column(there, "epoch"), _column(there, name), **look, **few)
    if kind.breakdown is not None:
        parts = dict(list(kind.breakdown(test).items())[: _MOST_CLASSES + 1])
        axes[2].plot(list(parts), list(parts.values()), marker="o", **look)
        return
    scores = kind.test_scores(test)
    axes[2].plot(range(1, len(scores) + 1), scores, marker="o", **look)
    axes[2].set_xticks(range(1, len(scores) + 1))


def _rates(folder: RunFolder) -> tuple[list[str], list[list[float]], list[float]]:
    """Returns (layers, rates per layer and step) of the last epoch."""
    rows = [row for row in read_table(folder.root / "layers.csv") if row.get("rate_1")]
    final = [row for row in rows if row["epoch"] == rows[-1]["epoch"]] if rows else []
    steps = [name for name in (final[0] if final else {}) if name.startswith("rate_")]
    values = [_column([row], name) for row in final for name in steps]
    table = [[_column([row], name)[0] for name in steps] for row in final]
    return [row["layer"] for row in final], table, [v[0] for v in values]


def _heat(figure: Any, axis: Any, label: str, folder: RunFolder, highest: float) -> None:
    layers, table, _ = _rates(folder)
    axis.set_title(f"firing rate\n{label}")
    if not table:
        axis.axis("off")
        return
    image = axis.imshow(table, aspect="auto", cmap="viridis", vmin=0, vmax=highest)
    axis.set_yticks(range(len(layers)), layers, fontsize=8)
    axis.set_xticks(range(len(table[0])), range(1, len(table[0]) + 1))
    axis.set_xlabel("time step")
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            shade = "white" if value < 0.6 * highest else "black"
            axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=shade)
    figure.colorbar(image, ax=axis, fraction=0.05)


def _over_epochs(axis: Any, folder: RunFolder, column: str, title: str) -> None:
    from matplotlib import colormaps

    rows = [row for row in read_table(folder.root / "layers.csv") if row.get(column)]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    for i, layer in enumerate(layers):
        own = [row for row in rows if row["layer"] == layer]
        shade = colormaps["viridis"](0.85 * i / max(1, len(layers) - 1))
        axis.plot(_column(own, "epoch"), _column(own, column), color=shade, label=layer)
    axis.set_title(title)
    axis.set_xlabel("epoch")
    axis.grid(alpha=0.25)
    if 0 < len(layers) <= 12:
        axis.legend(fontsize=7, frameon=False)


def save_figure(figure: Any, path: Path, **options: Any) -> Path:
    """Writes a figure in the format of its file ending (.png without one) and returns the path.

    options: passed to ``Figure.savefig``

    It is drawn in memory first, because on a full disk matplotlib would leave a partial file and raise an error without
    its name.
    """
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), **options)
    write_atomically(path, lambda file: file.write(drawn.getvalue()))
    return path

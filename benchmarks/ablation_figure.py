"""Draws docs/figures/cifar100-ablation.png from the recorded numbers of the ablation on all of CIFAR-100.

python -m benchmarks.ablation_figure
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.figures.style import COLOURS, HATCHES, MARKERS, panels, save, styled
from steadyspike.paper.work.recorded import Recorded
from steadyspike.results.measured import Measured

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "cifar100-ablation.png"
METHODS = {"neither": "neither", "mp": "MP-Init", "trsg": "TrSG", "both": "both"}
BY_LAYER = {
    "firing rate by layer": "firing rate",
    "shift by layer": "shift of the membrane, step 1 to 2",
    "V by layer": "V",
    "tau by layer": "tau (steps)",
}


def newest() -> dict[str, list[Measured]]:
    """The recorded runs of every method, a run per seed."""
    recorded = Recorded()
    runs = {label: recorded.newest(f"cifar100-narrow-{method}") for method, label in METHODS.items()}
    return {label: entries for label, entries in runs.items() if entries}


def numbers(runs: Sequence[Measured], name: str) -> NDArray[np.float64]:
    """A number or a list by layer of all runs that have it, a row per run."""
    return np.array([run.numbers[name] for run in runs if name in run.numbers], float)


def draw(runs: dict[str, list[Measured]], path: Path) -> None:
    """Bars of the accuracy after each step, and lines over the layers for rate, shift, V and tau.

    Bars and lines are means over the seeds; whiskers and bands go from the lowest to the highest seed.
    """
    with styled():
        figure, axes = panels(2, 3, width=3.4, height=2.5)
        accuracy, *others, legend = axes.flat
        bar, order = 0.8 / len(runs), list(METHODS.values())
        for column, (label, seeds) in enumerate(runs.items()):
            i = order.index(label)  # a method has the same colour in every figure
            scores = np.stack([numbers(seeds, "after step 1"), [run.value for run in seeds]], 1)
            mean = scores.mean(0)
            at = [step + bar * (column - (len(runs) - 1) / 2) for step in (0, 1)]
            accuracy.bar(
                at, mean, 0.9 * bar, color=COLOURS[i], hatch=HATCHES[i], alpha=0.85, label=label,
                yerr=[mean - scores.min(0), scores.max(0) - mean], error_kw={"linewidth": 1.0},
            )  # fmt: skip
            for axis, name in zip(others, BY_LAYER):
                if len(values := numbers(seeds, name)):
                    layers = np.arange(1, values.shape[1] + 1)
                    axis.plot(layers, values.mean(0), color=COLOURS[i], marker=MARKERS[i])
                    axis.fill_between(layers, values.min(0), values.max(0), color=COLOURS[i], alpha=0.2, linewidth=0)
        accuracy.set_xticks([0, 1], ["after step 1", "after step 2"])
        accuracy.set_title("test accuracy (%)")
        for axis, title in zip(others, BY_LAYER.values()):
            axis.set_title(title)
            axis.set_xlabel("layer")
        legend.axis("off")
        legend.legend(*accuracy.get_legend_handles_labels(), loc="center")
        save(figure, path)


def write() -> list[str]:
    """Draws the figure if a run with values by layer was recorded; its name if the file changed."""
    runs = newest()
    if not any("V by layer" in run.numbers for seeds in runs.values() for run in seeds):
        return []
    before = FIGURE.read_bytes() if FIGURE.exists() else b""
    draw(runs, FIGURE)
    return [f"docs/figures/{FIGURE.name}"] if FIGURE.read_bytes() != before else []


if __name__ == "__main__":
    print("\n".join(write()) or "nothing has changed")

"""Draws docs/figures/cifar100-ablation.png from the recorded numbers of the ablation on all of CIFAR-100.

python -m benchmarks.ablation_figure
"""

from __future__ import annotations

from pathlib import Path

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


def newest() -> dict[str, Measured]:
    """The run of seed 0 of every method that was recorded."""
    recorded = Recorded()
    runs = {label: recorded.newest(f"cifar100-narrow-{method}") for method, label in METHODS.items()}
    return {label: entries[0] for label, entries in runs.items() if entries}


def draw(runs: dict[str, Measured], path: Path) -> None:
    """Bars of the accuracy after each step, and lines over the layers for rate, shift, V and tau."""
    with styled():
        figure, axes = panels(2, 3, width=3.4, height=2.5)
        accuracy, *others, legend = axes.flat
        bar, order = 0.8 / len(runs), list(METHODS.values())
        for column, (label, run) in enumerate(runs.items()):
            i = order.index(label)  # a method has the same colour in every figure
            first = run.numbers["after step 1"]
            assert isinstance(first, float)
            at = [step + bar * (column - (len(runs) - 1) / 2) for step in (0, 1)]
            accuracy.bar(at, [first, run.value], 0.9 * bar, color=COLOURS[i], hatch=HATCHES[i], alpha=0.85, label=label)
            for axis, name in zip(others, BY_LAYER):
                if isinstance(values := run.numbers.get(name), list):
                    axis.plot(range(1, len(values) + 1), values, color=COLOURS[i], marker=MARKERS[i])
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
    if not any("V by layer" in run.numbers for run in runs.values()):
        return []
    before = FIGURE.read_bytes() if FIGURE.exists() else b""
    draw(runs, FIGURE)
    return [f"docs/figures/{FIGURE.name}"] if FIGURE.read_bytes() != before else []


if __name__ == "__main__":
    print("\n".join(write()) or "nothing has changed")

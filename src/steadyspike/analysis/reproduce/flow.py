"""What stands beside every accuracy, so that its reason can be seen: firing rate, gradient metrics, membrane shift."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from steadyspike.analysis.networks.gradient_flow import LayerGradients, gradient_metrics
from steadyspike.analysis.networks.observe import observe
from steadyspike.analysis.networks.shift import layer_shift
from steadyspike.analysis.reproduce.store import Arrays, Result
from steadyspike.analysis.reproduce.work import Work

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

KIND = "flow-1"  # the measurement's name and version in the store
COLUMNS = ("firing rate", "AbsStr", "RatioAG (%)", "GradCV", "shift")


def flow(run: LoadedRun) -> Arrays:
    """Gradient metrics before and after training on 128 training samples; rates and shift on 512 test samples."""
    from steadyspike.train.building.lightning_task import SpikingTask

    x, y = next(iter(run.data.eval_loader("train", 128)))
    start = SpikingTask.for_data(run.recipe, run.data).model
    seen = observe(run.model, islice(run.data.eval_loader("test", 128), 4))
    return {
        "start": _rows(gradient_metrics(start, x, y)),
        "end": _rows(gradient_metrics(run.model, x, y)),
        "rates": np.stack([layer.rates.numpy() for layer in seen.layers.values()]),
        "shift": np.array([layer_shift(layer).shift for layer in seen.layers.values()]),
        "layers": np.array(list(seen.layers)),
    }


def _rows(found: list[LayerGradients]) -> np.ndarray:
    """[layers, 3]: AbsStr, RatioAG, GradCV."""
    return np.array([[row.absolute, row.ratio, row.variation] for row in found])


def flows(work: Work, results: Sequence[Result]) -> list[Arrays]:
    return [work.measure(result, KIND, flow) for result in results]


def flow_cells(work: Work, results: Sequence[Result]) -> list[str]:
    """The cells of `COLUMNS`: means over layers and seeds at the end of training; "-" where nothing ran."""
    found = flows(work, results)
    if not found:
        return ["-"] * len(COLUMNS)
    rate = statistics.mean(float(f["rates"].mean()) for f in found)
    silent = [f["rates"].sum(1) == 0 for f in found]
    metrics = np.mean([f["end"].mean(0) for f in found], axis=0)
    # A layer without spikes has no active neurons, so nothing that could shift.
    shifts = [float(f["shift"][~none].mean()) for f, none in zip(found, silent) if not none.all()]
    shift = f"{statistics.mean(shifts):.2f}" if shifts else "-"
    count = statistics.mean(float(none.sum()) for none in silent)
    dead = f" ({count:.2g} layers silent)" if count else ""
    return [f"{rate:.3f}{dead}", f"{metrics[0]:.2g}", f"{100 * metrics[1]:.1f}", f"{metrics[2]:.2f}", shift]

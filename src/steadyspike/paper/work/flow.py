"""Further columns of every accuracy, which help to explain it: firing rate, gradient metrics, membrane shift."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from steadyspike.analysis.networks.observe import observe
from steadyspike.analysis.networks.shift import layer_shift
from steadyspike.paper.statistics.gradient_flow import LayerGradients, gradient_metrics
from steadyspike.paper.work.store import Arrays, Result

if TYPE_CHECKING:
    from steadyspike.paper.work.work import Work
    from steadyspike.train.run.loading import LoadedRun

KIND = "flow-1"  # the measurement's name and version in the store
FORMS = {"firing rate": ".3f", "AbsStr": ".2g", "RatioAG (%)": ".1f", "GradCV": ".2f", "shift": ".2f"}
COLUMNS = tuple(FORMS)
SILENT = "silent layers"


def flow(run: LoadedRun) -> Arrays:
    """Measures gradient metrics before and after training, and rates and shift.

    The metrics use 128 training samples, the others 512 test samples.
    """
    from steadyspike.train.build.task import Task

    x, y = next(iter(run.data.eval_loader("train", 128)))
    start = Task.for_data(run.recipe, run.data).model
    seen = observe(run.model, islice(run.data.eval_loader("test", 128), 4))
    return {
        "start": _rows(gradient_metrics(start, x, y)),
        "end": _rows(gradient_metrics(run.model, x, y)),
        "rates": np.stack([layer.rates.numpy() for layer in seen.layers.values()]),
        "shift": np.array([layer_shift(layer).shift for layer in seen.layers.values()]),
        "layers": np.array(list(seen.layers)),
    }


def _rows(gradients: list[LayerGradients]) -> np.ndarray:
    """Returns [layers, 3]: AbsStr, RatioAG, GradCV."""
    return np.array([[row.absolute, row.ratio, row.variation] for row in gradients])


def flows(work: Work, results: Sequence[Result]) -> list[Arrays]:
    return [work.measure(result, KIND, flow) for result in results]


def flow_numbers(arrays: Arrays) -> dict[str, float]:
    """Returns the numbers of `COLUMNS` of one run, and `SILENT`: means over layers at the end of training."""
    silent = arrays["rates"].sum(1) == 0
    absolute, ratio, variation = (float(value) for value in arrays["end"].mean(0))
    values = [float(arrays["rates"].mean()), absolute, 100 * ratio, variation]
    # A layer without spikes has no active neurons, so it has no shift.
    shift = [] if silent.all() else [float(arrays["shift"][~silent].mean())]
    return dict(zip(COLUMNS, [*values, *shift], strict=False)) | {SILENT: float(silent.sum())}


def flow_cells(means: Mapping[str, float | None]) -> list[str]:
    """Returns the cells of `COLUMNS` from means over seeds; "-" if nothing was measured."""
    cells = [f"{mean:{form}}" if (mean := means.get(name)) is not None else "-" for name, form in FORMS.items()]
    if silent := means.get(SILENT):
        cells[0] += f" ({silent:.2g} layers silent)"
    return cells


def mean_flow(work: Work, results: Sequence[Result]) -> dict[str, float | None]:
    """Returns `flow_numbers`, averaged over the seeds of a case."""
    per_run = [flow_numbers(arrays) for arrays in flows(work, results)]
    names = (*COLUMNS, SILENT)
    values = {name: [numbers[name] for numbers in per_run if name in numbers] for name in names}
    return {name: statistics.mean(own) if own else None for name, own in values.items()}

"""Other starts than MP-Init's constant, which the supplement leaves open, compared with it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from steadyspike.analysis.networks.observe import observe
from steadyspike.analysis.networks.shift import layer_shift
from steadyspike.nn.decision import decided
from steadyspike.paper.statistics.other_starts import KINDS, final_potentials, starting
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import Page, Table, spread
from steadyspike.paper.work.store import Arrays
from steadyspike.paper.work.work import Case, Work

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

TRAINED = Case("trained with MP-Init", "cifar100-resnet19-t4-tdbn-mp", "deep-resnet19-mp-sgd")
OWN = "MP-Init (as trained)"


def starts_of(run: LoadedRun) -> Arrays:
    """Returns the test accuracy after each step and the mean shift of every start, in the same trained network."""
    potentials = final_potentials(run.model, (x for x, _ in islice(run.data.eval_loader("train", 64), 8)))
    scores = {OWN: _scores(run)}
    for kind in KINDS:
        with starting(run.model, kind, potentials):
            scores[kind] = _scores(run)
    return scores


def _scores(run: LoadedRun) -> np.ndarray:
    """[T + 1]: accuracy in percent after 1..T steps on up to 1,024 test samples, and the mean shift of the layers."""
    seen = observe(run.model, islice(run.data.eval_loader("test", 64), 16))
    assert seen.logits is not None and seen.targets is not None
    sums = seen.logits.cumsum(0)
    accuracy = [100 * float((decided(step) == seen.targets).double().mean()) for step in sums]
    shifts = [layer_shift(layer).shift for layer in seen.layers.values() if layer.active]
    return np.array([*accuracy, np.mean(shifts) if shifts else np.nan])


def alternatives(work: Work) -> Page:
    page = Page("Alternative starts in a network trained with MP-Init (own evidence)")
    results = work.results(TRAINED)
    per_run = [work.measure(result, "starts-2", starts_of) for result in results]
    table = Table("The start is replaced after training", ["start", "after step 1 (%)", "after the last (%)", "shift"])
    for name in (OWN, *KINDS):
        columns = [[float(one[name][i]) for one in per_run] for i in (0, -2, -1)]
        table.rows.append([name, spread(columns[0]), spread(columns[1]), spread(columns[2], 3)])
    page.tables.append(table)
    page.notes.append(
        "weights and norms were trained with MP-Init and stay; another start might be better if the network is trained "
        "with it"
    )
    return page


EXPERIMENTS = (
    Experiment("alternative-starts", "own evidence", "sampled, quantile-matched and per-channel starts against MP-Init",
               alternatives, lambda scale: [TRAINED], ("mini", "deep", "paper"), 1),
)  # fmt: skip

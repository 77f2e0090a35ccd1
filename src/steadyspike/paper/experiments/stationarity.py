"""Figures 11 to 13: are the inputs of a layer i.i.d., and how fast does the membrane converge?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steadyspike.analysis.statistics.autocorrelation import iid_share
from steadyspike.analysis.statistics.distributions import against_last
from steadyspike.paper.experiments.networks import arrays_of, page_of, seen_of
from steadyspike.paper.figures import over_steps as draw
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import Page, Table
from steadyspike.paper.work.scales import ALL_SCALES, OWN_DATA
from steadyspike.paper.work.store import Arrays
from steadyspike.paper.work.work import Case, Work

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

# the number of steps for which a still image is shown, as in the supplement; event data uses its recipe's number
LONG = 10
KIND = "long-2"
STILL, EVENTS = "still images", "events"
STEMS = {STILL: "cifar100-resnet19-t4-tdbn", EVENTS: "dvs-cifar10-resnet19-t10-tdbn"}


def without(scale: str) -> list[Case]:
    """Returns the network without MP-Init on each kind of data; our own evidence has still images only."""
    deep = {STILL: "deep-resnet19-neither-sgd"}
    return [
        Case(data, stem, deep.get(data, "")) for data, stem in STEMS.items() if scale not in OWN_DATA or data in deep
    ]


def with_and_without(scale: str) -> list[Case]:
    deep = {STILL: "deep-resnet19-mp-sgd"}
    cases = []
    for case in without(scale):
        cases += [
            Case(f"{case.label}, without MP-Init", case.paper, case.deep),
            Case(f"{case.label}, with MP-Init", f"{case.paper}-mp", deep.get(case.label, "")),
        ]
    return cases


def long_of(run: LoadedRun) -> Arrays:
    """Measures distances from the last step, independence and boundedness; a still image is shown for ten steps.

    Rows are NaN for a layer in which no neuron fired, because these are statistics of active neurons.
    """
    fixed = run.data.timesteps is not None
    seen = seen_of(run, None if fixed else LONG, independence=True)
    layers = list(seen.layers.values())
    arrays = {
        "membrane": np.stack([against_last(layer.membrane_shares).numpy() for layer in layers]),
        "current": np.stack([against_last(layer.current_shares).numpy() for layer in layers]),
        "floor": np.array([[layer.floor("membrane"), layer.floor("current")] for layer in layers]),
        "independent": np.array([layer.independence for layer in layers]),
        "constant": np.array([layer.constant / max(layer.constant + layer.tested, 1) for layer in layers]),
        "bounded": np.stack([layer.bounded.numpy() for layer in layers]),
    }
    for rows in arrays.values():
        rows[[layer.active == 0 for layer in layers]] = np.nan
    return {"layers": np.array(list(seen.layers)), **arrays}


def assumption(work: Work) -> Page:
    cases = without(work.scale.name)
    arrays = arrays_of(work, cases, KIND, long_of)
    page = page_of("Assumption 1: inputs and bounded potentials (figures 11 and 12)", arrays, cases)
    for data, one in arrays.items():
        _assumption_of(page, data, one)
    return page


def _assumption_of(page: Page, data: str, one: Arrays) -> None:
    """Returns three figures and a table of one network."""
    names = [str(name) for name in one["layers"]]
    steps = one["current"].shape[1]
    baseline = iid_share(steps)
    key = data.replace(" ", "-")
    page.figures[f"input-distance-{key}"] = draw.distances(
        dict(zip(names, one["current"])),
        floor=float(np.nanmean(one["floor"][:, 1])),
        title=f"inputs of active neurons, {data}",
    )
    silent = [bool(np.isnan(rows).any()) for rows in one["bounded"]]
    page.figures[f"independence-{key}"] = draw.bars_with_baseline(
        dict(zip(names, one["independent"])), baseline, "not rejected (%)", f"i.i.d. numbers, n = {steps}",
        {name: "silent" if silent[i] else "constant" for i, name in enumerate(names)},
    )  # fmt: skip
    bounded = {f"within {k} V": 100 * np.nanmean(one["bounded"][:, k - 1], axis=0) for k in (1, 2)}
    page.figures[f"bounded-{key}"] = draw.distances(bounded, label="potentials inside (%)", title=data)
    table = Table(
        f"Per layer, {data}, {steps} steps",
        ["layer", "TV t = 2", "floor", "independent (%)", "constant (%)", "within V (%)"],
    )
    for i, name in enumerate(names):
        if silent[i]:
            table.rows.append([name, "silent", *["-"] * 4])
            continue
        independent = "-" if one["constant"][i] == 1 else f"{100 * one['independent'][i]:.1f}"
        table.rows.append([
            name, f"{one['current'][i, 1]:.3f}", f"{one['floor'][i, 1]:.3f}", independent,
            f"{100 * one['constant'][i]:.1f}", f"{100 * one['bounded'][i, 0].mean():.1f}",
        ])  # fmt: skip
    table.claims.append(
        f"i.i.d. numbers of this length are not rejected in {100 * baseline:.1f} %; a number well below "
        "it is evidence of correlation in time (the paper interprets 80 to 90 % as independence)"
    )
    page.tables.append(table)


def convergence(work: Work) -> Page:
    cases = with_and_without(work.scale.name)
    arrays = arrays_of(work, cases, KIND, long_of)
    page = page_of("Convergence of the membrane in a trained network, against the last step (figure 13)", arrays, cases)
    table = Table(
        "Mean over layers of the total variation against the last step",
        ["network", "steps", "floor", "t = 1", "t = 2", "t = 3"],
    )
    top = 1.05 * max((float(np.nanmax(one["membrane"])) for one in arrays.values()), default=1.0)
    for name, one in arrays.items():
        mean, floor = np.nanmean(one["membrane"], axis=0), float(np.nanmean(one["floor"][:, 0]))
        table.rows.append([name, str(len(mean)), f"{floor:.3f}", *(f"{mean[t]:.3f}" for t in range(3))])
        page.figures[f"convergence-{name.replace(',', '').replace(' ', '-')}"] = draw.distances(
            {str(layer): curve for layer, curve in zip(one["layers"], one["membrane"])},
            floor=floor, title=name, top=top,
        )  # fmt: skip
    page.tables.append(table)
    return page


EXPERIMENTS = (
    Experiment("assumption", "figures 11 and 12", "inputs i.i.d.? potentials bounded?", assumption, without,
               ALL_SCALES, 1),
    Experiment("convergence", "figure 13", "convergence of the membrane in a trained network", convergence,
               with_and_without, ALL_SCALES, 1),
)  # fmt: skip

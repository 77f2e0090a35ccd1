"""Figures of the values inside trained networks: distributions, logits, rates, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from steadyspike.analysis.networks.observe import Observation, observe
from steadyspike.analysis.statistics.distributions import against_last
from steadyspike.nn.decision import NO_CLASS, decided
from steadyspike.paper.figures import matrices
from steadyspike.paper.figures import over_steps as draw
from steadyspike.paper.statistics.gradient_flow import step_cosines, weights_before
from steadyspike.paper.statistics.projection import explained, principal_axes, project, separation
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import NOT_RUN, Page, Table, claim
from steadyspike.paper.work.scales import ALL_SCALES
from steadyspike.paper.work.store import Arrays
from steadyspike.paper.work.work import Case, Work

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

STEM = "cifar100-resnet19-t4"
WITH = Case("with MP-Init", f"{STEM}-tdbn-mp", "deep-resnet19-mp-sgd")
WITHOUT = Case("without MP-Init", f"{STEM}-tdbn", "deep-resnet19-neither-sgd")
NORMS = [
    Case("tdBN", f"{STEM}-tdbn", "deep-resnet19-neither-sgd"),
    Case("TEBN", f"{STEM}-tebn", "deep-tebn"),
    Case("TAB", f"{STEM}-tab", "deep-tab"),
    Case("MP-Init", f"{STEM}-tdbn-mp", "deep-resnet19-mp-sgd"),
]
OURS = NORMS[-1].label
NEGLIGIBLE = 0.1  # the total variation distance that the supplement calls negligible
SAMPLES = 512


def pair(scale: str) -> list[Case]:
    return [WITHOUT, WITH]


def norms(scale: str) -> list[Case]:
    return list(NORMS)


def seen_of(run: LoadedRun, timesteps: int | None = None, independence: bool = False) -> Observation:
    batches = islice(run.data.eval_loader("test", 64), SAMPLES // 64)
    return observe(run.model, batches, timesteps=timesteps, independence=independence)


def steps_of(run: LoadedRun) -> Arrays:
    """Everything about a trained network that figures need, at its own number of steps."""
    seen = seen_of(run)
    assert seen.logits is not None and seen.targets is not None
    return {
        "layers": np.array(list(seen.layers)),
        "membrane": np.stack([layer.membrane_shares.numpy() for layer in seen.layers.values()]),
        "current": np.stack([layer.current_shares.numpy() for layer in seen.layers.values()]),
        "current_edges": np.stack([layer.current_edges.numpy() for layer in seen.layers.values()]),
        "rates": np.stack([layer.rates.numpy() for layer in seen.layers.values()]),
        "logits": seen.logits.numpy(),
        "targets": seen.targets.numpy(),
        "classes": np.array(run.data.classes),
    }


def cosines_of(run: LoadedRun) -> Arrays:
    """Returns cosines of one layer's gradients by time step on 64 training samples, by both definitions."""
    x, y = next(iter(run.data.eval_loader("train", 64)))
    chosen = list(weights_before(run.model).values())[middle(len(weights_before(run.model)))][0]
    return {
        "layer": np.array(chosen),
        "contribution": step_cosines(run.model, chosen, x, y, "contribution").numpy(),
        "step loss": step_cosines(run.model, chosen, x, y, "step loss").numpy(),
    }


def middle(layers: int) -> int:
    """Returns the layer for figures of one layer: about the first of the third stage, as in the paper."""
    return min(layers - 1, max(1, round(0.75 * layers)))


def arrays_of(work: Work, cases: list[Case], what: str, compute: Callable[[LoadedRun], Arrays]) -> dict[str, Arrays]:
    """Returns measurements of the first seed of every case that has run, by label."""
    arrays = {}
    for case in cases:
        result = work.first(case)
        if result is not None:
            arrays[case.label] = work.measure(result, what, compute)
    return arrays


def page_of(title: str, arrays: dict[str, Arrays], cases: list[Case]) -> Page:
    page = Page(title)
    missing = [case.label for case in cases if case.label not in arrays]
    if missing:
        page.notes.append(f"{NOT_RUN} yet: {', '.join(missing)}")
    return page


def membrane(work: Work) -> Page:
    arrays = arrays_of(work, NORMS, "steps-1", steps_of)
    page = page_of("Membrane potential per time step (figure 1)", arrays, NORMS)
    _distributions(page, arrays, "membrane", lambda one, layer: (-2.0, 2.0), "U[t] / V")
    return page


def activation(work: Work) -> Page:
    arrays = arrays_of(work, NORMS, "steps-1", steps_of)
    page = page_of("Input of the next layer per time step (figure 2)", arrays, NORMS)
    _distributions(
        page, arrays, "current", lambda one, layer: tuple(one["current_edges"][layer][[0, -1]].tolist()), "I[t]"
    )
    return page


def _distributions(
    page: Page, arrays: dict[str, Arrays], key: str, reach: Callable[[Arrays, int], tuple[float, ...]], label: str
) -> None:
    table = Table(
        "Largest total variation against the last step",
        ["network", "layer", "this layer", "mean of layers", "silent layers"],
    )
    shown, reaches, drifts = {}, {}, {}
    for name, one in arrays.items():
        middle_layer = middle(len(one["layers"]))
        layer = str(one["layers"][middle_layer])
        silent = one["rates"].sum(1) == 0
        low, high = reach(one, middle_layer)
        title = f"{name}, {layer}"
        shown[title], reaches[title] = np.where(silent[middle_layer], np.nan, one[key][middle_layer]), (low, high)
        tv = [float(against_last(torch.from_numpy(steps))[:-1].max()) for steps in one[key][~silent]]
        own = None if silent[middle_layer] else float(against_last(torch.from_numpy(one[key][middle_layer]))[:-1].max())
        drifts[name] = (own, float(np.mean(tv)) if tv else None)
        row = ["silent" if drift is None else f"{drift:.3f}" for drift in drifts[name]]
        table.rows.append([name, layer, *row, str(int(silent.sum()))])
    table.claims = drift_claims(drifts)
    if shown:
        page.figures[key] = draw.step_distributions(shown, label, reaches)
    page.tables.append(table)


def drift_claims(drifts: Mapping[str, tuple[float | None, float | None]]) -> list[str]:
    """The claims of figures 1 and 2: the other networks drift clearly, MP-Init gives consistent distributions.

    drifts: for each network that ran, this layer's largest distance and the mean of the layers; None: silent
    """
    claims = []
    for i, where in enumerate(("this layer", "mean of layers")):
        values = {name: drift[i] for name, drift in drifts.items()}
        for other in (case.label for case in NORMS if case.label != OURS):
            text = f"{OURS} drifts less than {other} ({where}, hundredths)"
            pair = [[100 * value] if (value := values.get(name)) is not None else [] for name in (other, OURS)]
            silent = [name for name in (other, OURS) if name in values and values[name] is None]
            claims.append(f"{text}: nothing to judge, {silent[0]} is silent" if silent else claim(text, *pair))
    mean = drifts[OURS][1] if OURS in drifts else None
    if mean is not None:
        held = "held" if mean < NEGLIGIBLE else "did not hold"
        claims.append(
            f"{OURS} stays below {NEGLIGIBLE}, negligible to the supplement (mean of layers): {held} ({mean:.3f})"
        )
    return claims


def pca(work: Work) -> Page:
    cases = pair("")
    arrays = arrays_of(work, cases, "steps-1", steps_of)
    page = page_of("Logits per time step on two principal components (figures 4 and 5)", arrays, cases)
    if not arrays:
        return page
    first = next(iter(arrays.values()))
    chosen = first["targets"] < 4
    labels = torch.from_numpy(first["targets"][chosen])
    logits = {name: torch.from_numpy(one["logits"][:, chosen]) for name, one in arrays.items()}
    basis = principal_axes(torch.cat([one.flatten(0, 1) for one in logits.values()]))
    points = {name: project(one, basis) for name, one in logits.items()}
    table = Table(
        "Between-class share of the variance, after each step alone",
        ["network", "variance on the two axes", "per step"],
    )
    for name, own in points.items():
        shown = " ".join(f"{separation(step, labels):.2f}" for step in own)
        table.rows.append([name, f"{100 * explained(logits[name].flatten(0, 1), basis):.0f} %", shown])
    steps = list(range(1, len(first["logits"]) + 1))
    names = [str(name) for name in first["classes"][:4]]
    rows = {name: [step.numpy() for step in own] for name, own in points.items()}
    page.figures["pca"] = matrices.projections(rows, labels.numpy(), names, steps)
    page.tables.append(table)
    page.notes.append("one basis, fitted on all steps of both networks; the first four classes are shown")
    return page


def firing_rate(work: Work) -> Page:
    cases = pair("")
    arrays = arrays_of(work, cases, "steps-1", steps_of)
    page = page_of("Firing rate of chosen layers at every step (figure 6)", arrays, cases)
    if arrays:
        shown = {}
        table = Table("Firing rate, mean over all layers", ["network", "per step"])
        for name, one in arrays.items():
            places = np.unique(np.linspace(0, len(one["layers"]) - 1, 6).round().astype(int))
            shown[name] = {str(one["layers"][i]): one["rates"][i] for i in places}
            table.rows.append([name, " ".join(f"{rate:.3f}" for rate in one["rates"].mean(0))])
        page.figures["firing-rate"] = draw.firing_rates(shown)
        page.tables.append(table)
    return page


def predictions(work: Work) -> Page:
    cases = pair("")
    arrays = arrays_of(work, cases, "steps-1", steps_of)
    page = page_of("Predicted classes over time steps (figure 7)", arrays, cases)
    if arrays:
        shown = {}
        table = Table("Share of the most predicted class, per step alone", ["network", "per step"])
        for name, one in arrays.items():
            guesses = decided(torch.from_numpy(one["logits"])).numpy()
            classes = len(one["classes"])
            predicted = [step[step != NO_CLASS] for step in guesses]
            shares = np.stack([np.bincount(step, minlength=classes) / guesses.shape[1] for step in predicted])
            shown[name] = shares
            table.rows.append([name, " ".join(f"{share:.2f}" for share in shares.max(1))])
            if (guesses == NO_CLASS).any():
                none = " ".join(f"{share:.2f}" for share in (guesses == NO_CLASS).mean(1))
                page.notes.append(f"{name}: NaN or infinite scores predict no class; share of samples per step: {none}")
        names = [str(name) for name in next(iter(arrays.values()))["classes"]]
        page.figures["predictions"] = draw.predicted_classes(shown, names)
        page.tables.append(table)
    return page


def gradient_cosine(work: Work) -> Page:
    cases = pair("")
    arrays = arrays_of(work, cases, "cosines-1", cosines_of)
    page = page_of("Cosines between the time steps' gradients (figure 10)", arrays, cases)
    table = Table("Mean cosine of step 1 with later steps", ["network", "layer", "contribution", "step loss"])
    for name, one in arrays.items():
        cells = [f"{np.nanmean(one[key][0, 1:]):.3f}" for key in ("contribution", "step loss")]
        table.rows.append([name, str(one["layer"]), *cells])
    if arrays:
        for key in ("contribution", "step loss"):
            shown = {name: one[key] for name, one in arrays.items()}
            page.figures[f"cosine-{key.replace(' ', '-')}"] = matrices.cosines(shown, key)
        page.tables.append(table)
    page.notes.append('"contribution" matches the paper\'s wording; "step loss" is the definition of MPS and TET')
    return page


EXPERIMENTS = (
    Experiment("membrane", "figure 1", "membrane per step: tdBN, TEBN, TAB, MP-Init", membrane, norms, ALL_SCALES, 1),
    Experiment("activation", "figure 2", "input of a layer per step: tdBN, TEBN, TAB, MP-Init", activation, norms,
               ALL_SCALES, 1),
    Experiment("pca", "figures 4 and 5", "logits per step on one common basis", pca, pair, ALL_SCALES, 1),
    Experiment("firing-rate", "figure 6", "firing rate of six layers at every step", firing_rate, pair, ALL_SCALES, 1),
    Experiment("predictions", "figure 7", "predicted classes over the steps", predictions, pair, ALL_SCALES, 1),
    Experiment("gradient-cosine", "figure 10", "cosines between the steps' gradients", gradient_cosine, pair,
               ALL_SCALES, 1),
)  # fmt: skip

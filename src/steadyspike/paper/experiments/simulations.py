"""Experiments without a network: surrogate windows, convergence with Gaussian input, the membrane as a Markov chain."""

from __future__ import annotations

import numpy as np
import torch

from steadyspike.analysis.statistics.distributions import total_variation
from steadyspike.core.reference_scan import spike
from steadyspike.core.spec import ScanSpec
from steadyspike.paper.figures.over_steps import distances as distance_figure
from steadyspike.paper.figures.windows import membrane_grid, surrogate_windows
from steadyspike.paper.theory import chain as chains
from steadyspike.paper.theory import starts
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import Page, Table
from steadyspike.paper.work.work import Work

FAMILIES = {"as": "AS-SG", "rs": "RS-SG", "trsg": "TrSG"}
STEPS = 10
INPUTS = {"N(0, 1)": (0.0, 1.0), "N(0.5, 1)": (0.5, 1.0), "N(1, 0.5)": (1.0, 0.5)}
NONE = ("mini", "paper")  # the same at every scale


def output_gradient(m: torch.Tensor, v: float, family: str) -> torch.Tensor:
    """Returns dO/dM at every M, by the library's own spike function (equations 6, 8 and 10)."""
    m = m.clone().requires_grad_()
    threshold = torch.tensor([v], dtype=m.dtype)
    s = spike(m, threshold, ScanSpec(family=family))
    out = threshold * s if family == "trsg" else s
    return torch.autograd.grad(out.sum(), m)[0]


def windows(work: Work) -> Page:
    grid = membrane_grid()
    m = torch.from_numpy(grid)
    thresholds = (0.2, 2.0)
    density = {v: np.exp(-0.5 * ((grid - 0.4 * v) / (0.5 * v)) ** 2) for v in thresholds}
    gradients = {v: {text: output_gradient(m, v, name).numpy() for name, text in FAMILIES.items()} for v in thresholds}
    page = Page("Surrogate windows of AS-SG, RS-SG and TrSG (figure 3)")
    page.figures["windows"] = surrogate_windows(grid, density, gradients)
    table = Table(
        "dO/dM, and the share of a membrane N(0.4 V, 0.5 V) inside the window", ["V", "family", "height", "%"]
    )
    for v, curves in gradients.items():
        share = density[v] / density[v].sum()
        for name, curve in curves.items():
            table.rows.append([f"{v:g}", name, f"{curve.max():.3g}", f"{100 * share[curve > 0].sum():.0f}"])
    page.tables.append(table)
    return page


def simulated(work: Work) -> Page:
    """Returns the TV from t = 10 of the exact chain, with soft reset and input N(0, 1), from U[0] = 0."""

    def curve(v: float, tau: float) -> np.ndarray:
        chain = chains.membrane_chain(chains.gaussian(), v, tau)
        p = chains.evolve(chain, chain.start(0.0), STEPS)[1:]
        return total_variation(p, p[-1]).numpy()

    by_v = {f"V = {v:g}": curve(v, 2.0) for v in (0.25, 0.5, 1.0, 2.0)}
    by_tau = {f"tau = {tau:g}": curve(1.0, tau) for tau in (1.33, 2.0, 3.0, 5.0)}
    page = Page("Convergence of the membrane with Gaussian input (figure 19)")
    page.figures["by-threshold"] = distance_figure(by_v, title="tau = 2", label="total variation against t = 10")
    page.figures["by-tau"] = distance_figure(by_tau, title="V = 1", label="total variation against t = 10")
    for title, curves in (("tau = 2", by_v), ("V = 1", by_tau)):
        table = Table(f"Total variation against t = 10, {title}", ["", *(f"t = {t}" for t in (1, 2, 3, 5))])
        table.rows = [[name, *(f"{c[t - 1]:.3f}" for t in (1, 2, 3, 5))] for name, c in curves.items()]
        ordered = [c[1] for c in curves.values()]
        held = all(a < b for a, b in zip(ordered, ordered[1:]))  # noqa: RUF007
        table.claims.append(f"smaller values converge faster (t = 2): {'held' if held else 'did not hold'}")
        page.tables.append(table)
    page.notes.append("computed from the transition kernel, without sampling: there is no noise floor")
    return page


def theory(work: Work) -> Page:
    page = Page("The membrane as a Markov chain: theorem 1 and lemma 1, checked numerically")
    bounds = Table(
        "Doeblin's bound and the decay (V = 1, tau = 2)",
        ["reset", "input", "epsilon, 1 step", "epsilon, 3 steps", "TV t = 3", "bound", "second eigenvalue"],
    )
    means = Table(
        "Constant starts, T = 4 (drift: mean TV to the stationary law over t = 1..4)",
        ["reset", "input", "E[pi]", "MP-Init settles at", "best constant", "drift: 0", "E[pi]", "MP-Init", "best"],
    )
    for reset in ("soft", "hard"):
        for name, (mean, std) in INPUTS.items():
            chain = chains.membrane_chain(chains.gaussian(mean, std), 1.0, 2.0, reset)
            pi = chains.stationary(chain)
            centre, settles = chain.mean(pi), starts.mp_init_fixed_point(chain, 4)
            best, least = starts.best_constant(chain, 4)
            drifts = [starts.drift(chain, chain.start(c), 4) for c in (0.0, centre, settles)]
            means.rows.append(
                [reset, name, f"{centre:.3f}", f"{settles:.3f}", f"{best:.3f}", *(f"{d:.4f}" for d in (*drifts, least))]
            )
            one, three = chains.doeblin(chain), chains.doeblin(chain, 3)
            away = float(starts.distances(chain, chain.start(0.0), 3)[3])
            bounds.rows.append([
                reset, name, f"{one:.3f}", f"{three:.3f}", f"{away:.4f}", f"{1 - three:.3f}",
                f"{chains.second_eigenvalue(chain):.3f}",
            ])  # fmt: skip
            bounds.claims += [] if away <= 1 - three else [f"{reset}, {name}: the bound did NOT hold"]
            if reset == "soft":
                constants = torch.linspace(-1, 1, 201, dtype=torch.float64)
                lemma = float(constants[starts.squared_distance(chain, pi, constants).argmin()])
                means.claims.append(
                    f"lemma 1, {name}: the constant of least squared distance is {lemma:.2f}, the mean {centre:.3f}"
                )
    page.tables += [bounds, means]
    chain = chains.membrane_chain(chains.gaussian(1.0, 0.5), 1.0, 2.0, "soft")
    pi = chains.stationary(chain)
    settles = starts.mp_init_fixed_point(chain, 4)
    curves = {
        "U[0] = 0": chain.start(0.0),
        "U[0] = E[pi]": chain.start(chain.mean(pi)),
        f"MP-Init ({settles:.2f})": chain.start(settles),
        "U[0] sampled from pi": pi,
    }
    page.figures["starts"] = distance_figure(
        {name: starts.distances(chain, start, 6)[1:].numpy() for name, start in curves.items()},
        title="input N(1, 0.5), V = 1, tau = 2, soft reset", label="total variation to the stationary law",
    )  # fmt: skip
    return page


EXPERIMENTS = (
    Experiment("windows", "figure 3", "surrogate windows of AS, RS and TrSG at small and large V", windows,
               scales=NONE),
    Experiment("convergence-simulated", "figure 19", "convergence of the membrane with Gaussian input", simulated,
               scales=NONE),
    Experiment("theory", "theorem 1 and lemma 1", "the membrane as a Markov chain; docs/theory.md", theory,
               scales=NONE),
)  # fmt: skip

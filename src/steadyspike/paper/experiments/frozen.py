"""V and tau frozen: the supplement's stress test of the surrogate families, and its gradient metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from steadyspike.paper.work.accuracy_table import Claim, accuracy_table
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.flow import flows
from steadyspike.paper.work.page import Page, Table
from steadyspike.paper.work.scales import ALL_SCALES, DEEP_EPOCHS, MINI_EPOCHS
from steadyspike.paper.work.work import Case, Work, chains

FAMILIES = {"as": "AS-SG", "rs": "RS-SG", "trsg": "TrSG"}
SAME = "AS-SG, RS-SG, TrSG"
# (threshold, family) -> the supplement's AbsStr, RatioAG in percent, GradCV after epoch 1 and after epoch 100
PAPER_METRICS = {
    (0.1, "as"): ("0.2756 / 31.25 / 5.01", "0.0145 / 90.20 / 1.22"),
    (0.1, "rs"): ("7.8191 / 0.01 / 37.11", "NaN / 0.00 / NaN"),
    (0.1, "trsg"): ("0.0046 / 3.05 / 0.861", "0.0153 / 21.45 / 0.865"),
    (1.0, "as"): ("0.0122 / 6.72 / 0.818", "0.0211 / 18.97 / 0.571"),
    (1.0, "rs"): ("0.0122 / 6.72 / 0.818", "0.0211 / 18.97 / 0.571"),
    (1.0, "trsg"): ("0.0122 / 6.72 / 0.818", "0.0211 / 18.97 / 0.571"),
    (2.0, "as"): ("0.0058 / 0.78 / 17.14", "0.0000 / 0.00 / 0.000"),
    (2.0, "rs"): ("0.0066 / 1.64 / 0.639", "0.0021 / 0.10 / 2.247"),
    (2.0, "trsg"): ("0.0092 / 1.62 / 0.961", "0.0323 / 6.90 / 0.731"),
}


def frozen_cases(scale: str) -> list[Case]:
    if scale == "deep":
        return _deep(("",), (0.1, 2.0, 1.0))
    if scale == "narrow":
        return [case for case in _deep(("",), (0.1,)) if case.label != FAMILIES["rs"]]
    return [
        Case(FAMILIES[family], f"frozen-{family}-{reset}-v{v}", "", f"{reset} reset, V = {v}")
        for reset in ("soft", "hard")
        for v in (0.1, 0.5, 1.0, 1.5, 2.0)
        for family in FAMILIES
    ]


def _deep(
    norms: Sequence[str], thresholds: Sequence[float], epochs: int = 0, *, own: bool = False, small: bool = False
) -> list[Case]:
    """At V = 1 the three families are equal; with the plain norm this is the ablation's "neither".

    epochs: of the longer training, for its heading; 0: that of the others
    own: cases that the paper does not have
    small: for "mini", because the ablation's network has more layers than these
    """
    texts = {"": "plain norm", "-scaled": "norm scaled to V"}
    cases = []
    for v, norm in product(thresholds, norms):
        group = f"V = {v}, {texts[norm]}{f', {epochs} epochs' if epochs else ''}"
        if v == 1.0:
            plain = "deep-frozen-as-v1.0" if small else "deep-resnet19-neither-sgd"
            deep = f"deep-frozen-trsg-v1.0{norm}" if norm else plain
            cases.append(Case(SAME, "frozen-trsg-soft-v1.0", deep, group, own))
            continue
        cases += [
            Case(
                label,
                f"frozen-{family}-soft-v{v}",
                f"deep-frozen-{family}-v{v}{norm}{'-long' if epochs else ''}",
                group,
                own,
            )
            for family, label in FAMILIES.items()
        ]
    return cases


def _claims(cases: Sequence[Case]) -> list[Claim]:
    there = {case.label for case in cases}
    return [(f"TrSG above {other}", "TrSG", other) for other in ("AS-SG", "RS-SG") if {"TrSG", other} <= there]


def _page(work: Work, title: str, cases: list[Case]) -> Page:
    page = Page(title)
    for own in chains(cases):
        page.tables.append(accuracy_table(work, own[0].group, own, _claims(own)))
    if any(case.label == SAME for case in cases):
        page.notes.append("At V = 1 the three families are one: forward and gradients are equal, so it ran once.")
    return page


def frozen(work: Work) -> Page:
    return _page(work, "V and tau frozen (table 10)", frozen_cases(work.scale.name))


def norm_scale_cases(scale: str) -> list[Case]:
    return _deep(("", "-scaled"), (0.1, 2.0, 1.0), own=True, small=scale == "mini")


def norm_scale(work: Work) -> Page:
    cases = norm_scale_cases(work.scale.name)
    return _page(work, "V frozen, with a plain norm and with one scaled to V (own evidence)", cases)


def length_cases(scale: str) -> list[Case]:
    longer = 4 * (MINI_EPOCHS if scale == "mini" else DEEP_EPOCHS)
    both = [case for epochs in (0, longer) for case in _deep(("", "-scaled"), (0.1,), epochs, own=True)]
    return [case for case in both if case.label != "RS-SG"]


def length(work: Work) -> Page:
    page = Page("Does TrSG overtake AS at V = 0.1 when training is four times longer? (own evidence)")
    for own in chains(length_cases(work.scale.name)):
        page.tables.append(accuracy_table(work, own[0].group, own, _claims(own)))
    return page


GAINS = (0.5, 0.3, 0.1)  # where the norms' weights start


def gain_cases(scale: str) -> list[Case]:
    plain = [case for case in _deep(("",), (0.1,), own=True) if case.label != FAMILIES["rs"]]
    smaller = [
        Case(
            label,
            f"frozen-{family}-soft-v0.1",
            f"deep-frozen-{family}-v0.1-gain{gain}",
            f"the gain starts at {gain}",
            True,
        )
        for gain in GAINS
        for family, label in FAMILIES.items()
        if family != "rs"
    ]
    return [*(replace(case, group="the gain starts at 1") for case in plain), *smaller]


def gain(work: Work) -> Page:
    page = Page("Does the norms' gain decide between AS and TrSG at V = 0.1? (own evidence)")
    for own in chains(gain_cases(work.scale.name)):
        page.tables.append(accuracy_table(work, own[0].group, own, _claims(own)))
    return page


def metric_cases(scale: str) -> list[Case]:
    if scale == "deep":
        return _deep(("",), (1.0, 0.1, 2.0))
    return [
        Case(FAMILIES[family], f"frozen-{family}-soft-v{v}", "", f"V = {v}")
        for v in (1.0, 0.1, 2.0)
        for family in FAMILIES
    ]


def metrics(work: Work) -> Page:
    page = Page("Gradient metrics AbsStr / RatioAG (%) / GradCV (tables 7 to 9)")
    table = Table(
        "mean over all spiking layers and seeds",
        ["V", "family", "paper, epoch 1", "measured, before training", "paper, epoch 100", "measured, after training"],
    )
    for case in metric_cases(work.scale.name):
        _, family, _, v = case.paper.split("-")
        paper = PAPER_METRICS[float(v[1:]), family]
        per_run = flows(work, work.results(case))
        now = [
            " / ".join(_cells(np.mean([f[when].mean(0) for f in per_run], axis=0))) if per_run else "not run"
            for when in ("start", "end")
        ]
        table.rows.append([v[1:], case.label, paper[0], now[0], paper[1], now[1]])
    page.tables.append(table)
    page.notes.append(
        "The paper gives the numbers of one layer, which it does not name, of ResNet-19 on CIFAR-100. Sizes of "
        "gradients depend on batch, loss and width, so compare families within a column, not columns with each "
        "other."
    )
    return page


def _cells(row: np.ndarray) -> list[str]:
    return [f"{row[0]:.4g}", f"{100 * row[1]:.2f}", f"{row[2]:.3g}"]


EXPERIMENTS = (
    Experiment("gradient-metrics", "tables 7 to 9", "AbsStr, RatioAG, GradCV at V = 0.1, 1, 2", metrics, metric_cases,
               ("mini", "deep", "paper")),
    Experiment("frozen-v", "table 10", "AS, RS and TrSG with V and tau frozen", frozen, frozen_cases, ALL_SCALES),
    Experiment("norm-scale", "own evidence", "V frozen, with a norm that follows V and one that does not", norm_scale,
               norm_scale_cases, ("mini", "deep")),
    Experiment("length", "own evidence", "AS against TrSG at V = 0.1 in training four times longer", length,
               length_cases, ("mini", "deep")),
    Experiment("gain", "own evidence", "AS against TrSG at V = 0.1 with norms whose weights start below 1", gain,
               gain_cases, ("mini", "deep")),
)  # fmt: skip

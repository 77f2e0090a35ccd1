"""Figures over many configurations: initial V and tau, accuracy against firing rate, learned constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from steadyspike.paper.figures import curves
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.flow import flows
from steadyspike.paper.work.page import NOT_RUN, Page, Table, claim, finals, measured
from steadyspike.paper.work.scales import ALL_SCALES, OWN_DATA
from steadyspike.paper.work.work import Case, Work, chains
from steadyspike.train.files.tables import read_table

FAMILIES = {"as": "AS-SG", "rs": "RS-SG", "trsg": "TrSG"}
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0)
Start = tuple[str, str, str]  # label, V, tau
BY_V: tuple[Start, ...] = (("V = 0.5", "0.5", "2.0"), ("V = 1", "1.0", "2.0"), ("V = 2", "2.0", "2.0"))
BY_TAU: tuple[Start, ...] = (("tau = 1.33", "1.0", "1.33"), ("tau = 2", "1.0", "2.0"), ("tau = 3", "1.0", "3.0"))


def surrogate_cases(shapes: Sequence[str], starts: Sequence[Start]) -> Callable[[str], list[Case]]:
    """Returns the cases of every shape, reset, start and family; "mini" uses the first shape only."""

    def cases(scale: str) -> list[Case]:
        return [
            Case(f"{label}, {text}", f"sg-{shape}-{family}-{reset}-v{v}-tau{tau}", "", f"{shape}, {reset} reset")
            for shape in (shapes[:1] if scale == "mini" else shapes)
            for reset in ("soft", "hard")
            for label, v, tau in starts
            for family, text in FAMILIES.items()
        ]

    return cases


def surrogate_page(
    title: str, shapes: Sequence[str], starts: Sequence[Start], with_curves: bool
) -> Callable[[Work], Page]:
    labels = [start[0] for start in starts]

    def page_of(work: Work) -> Page:
        page = Page(title)
        cases = surrogate_cases(shapes, starts)(work.scale.name)
        bars = {}
        for own in chains(cases):
            by_label = {case.label: finals(work.results(case)) for case in own}
            bars[own[0].group] = {
                text: [by_label[f"{label}, {text}"] for label in labels] for text in FAMILIES.values()
            }
            table = Table(own[0].group, ["start, family", "measured (%)"])
            table.rows = [[case.label, measured(work.results(case))] for case in own]
            for label in labels:
                for other in ("AS-SG", "RS-SG"):
                    pair = (by_label[f"{label}, TrSG"], by_label[f"{label}, {other}"])
                    table.claims.append(claim(f"{label}: TrSG above {other}", *pair))
            page.tables.append(table)
        if any(values for panel in bars.values() for series in panel.values() for values in series):
            page.figures["bars"] = curves.grouped_bars(bars, labels)
        page.notes.append("the paper shows bars without printed numbers: only the order can be compared")
        if with_curves:
            _training_curves(page, work, [case for case in cases if case.label.startswith("V = 1,")])
        return page

    return page_of


def _training_curves(page: Page, work: Work, cases: list[Case]) -> None:
    for own in chains(cases):
        by_case = {}
        for case in own:
            result = work.first(case)
            if result is not None:
                rows = read_table(result.folder / "metrics.csv")
                by_case[case.label] = {
                    "loss": np.array([float(row["train_loss"]) for row in rows]),
                    "accuracy": np.array([float(row["train_accuracy"]) for row in rows]),
                }
        if by_case:
            page.figures[f"curves-{own[0].group.split(',')[0]}-{own[0].group.split()[1]}"] = curves.training_curves(
                by_case
            )


def rate_cases(methods: dict[str, str]) -> Callable[[str], list[Case]]:
    def cases(scale: str) -> list[Case]:
        weights = (0.01, 0.1, 1.0) if scale == "mini" else WEIGHTS
        return [
            Case(f"{text}, penalty {w}", f"sparsity-{name}-w{w}", "", text)
            for name, text in methods.items()
            for w in weights
        ]

    return cases


def rate_page(title: str, methods: dict[str, str]) -> Callable[[Work], Page]:
    def page_of(work: Work) -> Page:
        page = Page(title)
        series: dict[str, list[tuple[float, float]]] = {}
        table = Table("Spike penalty", ["method, weight", "measured (%)", "firing rate"])
        for case in rate_cases(methods)(work.scale.name):
            results = work.results(case)
            rates = [float(f["rates"].mean()) for f in flows(work, results)]
            points = list(zip(rates, (r.accuracy[-1] for r in results)))
            series.setdefault(case.group, []).extend(points)
            shown = f"{np.mean(rates):.4f}" if rates else NOT_RUN
            table.rows.append([case.label, measured(results), shown])
        plain, better = (series.get(text, []) for text in methods.values())
        if plain and better:
            above = sum(all(a > b for r, b in plain if abs(r - rate) <= 0.2 * rate) for rate, a in better)
            table.claims.append(
                f"{list(methods.values())[1]} above at equal rate: for {above} of {len(better)} of its points, no run "
                "of the other method with a rate within 20 % is better"
            )
        if any(series.values()):
            page.figures["rate-accuracy"] = curves.accuracy_by_rate(series)
        page.tables.append(table)
        return page

    return page_of


MP = {"baseline": "tdBN alone", "mp": "tdBN + MP-Init"}
TRAINED = {"frozen": "V and tau frozen", "trained": "V and tau trained"}
BOTH = {"CIFAR-100": "cifar100-resnet19-t4", "DVS-CIFAR10": "dvs-cifar10-resnet19-t10"}


def both_cases(scale: str) -> list[Case]:
    if scale in OWN_DATA:
        return [Case(OWN_DATA[scale], "", "deep-resnet19-both-sgd")]
    return [Case(label, name) for label, name in BOTH.items()]


def _layer_table(work: Work, case: Case) -> dict[str, dict[str, list[float]]]:
    """Returns the columns of layers.csv over epochs for each layer; empty if it did not run."""
    result = work.first(case)
    by_layer: dict[str, dict[str, list[float]]] = {}
    for row in read_table(result.folder / "layers.csv") if result is not None else []:
        if row["threshold"]:
            own = by_layer.setdefault(row["layer"], {"threshold": [], "tau": [], "running_mean": []})
            for key in own:
                own[key].append(float(row[key]) if row[key] else float("nan"))
    return by_layer


def threshold_paths(work: Work) -> Page:
    page = Page("Thresholds during training (figure 14)")
    shown = {}
    table = Table("V after the first and the last epoch", ["data", "layer", "first epoch", "last epoch"])
    for case in both_cases(work.scale.name):
        layers, data = _layer_table(work, case), work.heading(case, case.label)
        if layers:
            shown[data] = {name: np.array(one["threshold"]) for name, one in layers.items()}
        for name, one in layers.items():
            table.rows.append([data, name, f"{one['threshold'][0]:.3f}", f"{one['threshold'][-1]:.3f}"])
    if shown:
        page.figures["threshold-paths"] = curves.paths(shown, "threshold V")
    page.tables.append(table)
    return page


def final_values(work: Work) -> Page:
    page = Page("V, tau and running mean of every layer after training (figure 18)")
    values, names = {}, {}
    table = Table("After training", ["data", "layer", "V", "tau", "running mean", "mean / V"])
    for case in both_cases(work.scale.name):
        layers, data = _layer_table(work, case), work.heading(case, case.label)
        if not layers:
            continue
        last = {name: {key: column[-1] for key, column in one.items()} for name, one in layers.items()}
        names[data] = list(last)
        texts = {"threshold": "V", "tau": "tau", "running_mean": "running mean"}
        values[data] = {text: [one[key] for one in last.values()] for key, text in texts.items()}
        for name, one in last.items():
            ratio = one["running_mean"] / one["threshold"]
            table.rows.append([
                data, name, f"{one['threshold']:.3f}", f"{one['tau']:.3f}", f"{one['running_mean']:.3f}",
                f"{ratio:.2f}",
            ])  # fmt: skip
        ratios = [one["running_mean"] / one["threshold"] for one in last.values()]
        table.claims.append(
            f"{data}: running mean about half of V with soft reset (the paper): measured {np.mean(ratios):.2f} V"
        )
    if values:
        page.figures["final-values"] = curves.layer_values(values, names)
    page.tables.append(table)
    return page


_RECT, _SMOOTH = ("rect", "triangle"), ("arctan", "sigmoid")
EXPERIMENTS = (
    Experiment("rate-accuracy-mp", "figure 8", "accuracy against firing rate: MP-Init",
               rate_page("Accuracy against firing rate, with and without MP-Init (figure 8)", MP), rate_cases(MP),
               seeds=1),
    Experiment("surrogates", "figure 9", "initial V for AS, RS, TrSG; rectangle, triangle; training curves",
               surrogate_page("Accuracy by initial V, and training curves (figure 9)", _RECT, BY_V, True),
               surrogate_cases(_RECT, BY_V), seeds=1),
    Experiment("threshold-paths", "figure 14", "thresholds during training", threshold_paths, both_cases,
               ALL_SCALES, 1),
    Experiment("surrogates-smooth", "figure 15", "initial V and tau for arctan and sigmoid",
               surrogate_page("Accuracy by initial V and tau, arctan and sigmoid (figure 15)", _SMOOTH,
                              (*BY_V, *BY_TAU[::2]), False),
               surrogate_cases(_SMOOTH, (*BY_V, *BY_TAU[::2])), seeds=1),
    Experiment("surrogates-tau", "figure 16", "initial tau for AS, RS, TrSG; rectangle, triangle",
               surrogate_page("Accuracy by initial tau (figure 16)", _RECT, BY_TAU, False),
               surrogate_cases(_RECT, BY_TAU), seeds=1),
    Experiment("rate-accuracy-trsg", "figure 17", "accuracy against firing rate: V and tau trained or frozen",
               rate_page("Accuracy against firing rate under TrSG (figure 17)", TRAINED), rate_cases(TRAINED), seeds=1),
    Experiment("final-values", "figure 18", "V, tau and running mean per layer after training", final_values,
               both_cases, ALL_SCALES, 1),
)  # fmt: skip

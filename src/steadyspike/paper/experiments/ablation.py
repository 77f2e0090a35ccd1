"""Tables of accuracy with and without the two methods: table 1, table 2, two time steps, depth, optimizers."""

from __future__ import annotations

from steadyspike.paper.work.accuracy_table import Claim, accuracy_table, in_order
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import Page
from steadyspike.paper.work.scales import ALL_SCALES, OWN_DATA
from steadyspike.paper.work.work import Case, Work, chains

METHODS = {"neither": "-tdbn", "mp": "-tdbn-mp", "trsg": "-trsg", "both": ""}
LABELS = {"neither": "neither", "mp": "MP-Init", "trsg": "TrSG", "both": "both"}
DEPTHS = {"resnet9": "7 spiking layers", "resnet15": "13 spiking layers", "resnet19": "17 spiking layers"}


def ablation_cases(scale: str) -> list[Case]:
    sets = {"CIFAR-100": "cifar100-resnet19-t4", "DVS-CIFAR10": "dvs-cifar10-resnet19-t10"}
    if scale in OWN_DATA:
        sets = {OWN_DATA[scale]: "cifar100-resnet19-t4"}
    return [
        Case(LABELS[method], f"{stem}{ending}", f"deep-resnet19-{method}-sgd", group)
        for group, stem in sets.items()
        for method, ending in METHODS.items()
    ]


def ablation(work: Work) -> Page:
    page = Page("Ablation: MP-Init and TrSG (table 2)")
    for cases in chains(ablation_cases(work.scale.name)):
        claims = [*in_order(cases), ("both above neither", "both", "neither")]
        page.tables.append(accuracy_table(work, work.heading(cases[0], cases[0].group), cases, claims))
    return page


def norm_cases(scale: str) -> list[Case]:
    deep = {
        "tdBN": "deep-resnet19-neither-sgd", "tdBN + MP-Init": "deep-resnet19-mp-sgd", "TEBN": "deep-tebn",
        "TEBN + MP-Init": "deep-tebn-mp", "TAB": "deep-tab", "TAB + MP-Init": "deep-tab-mp",
    }  # fmt: skip
    sets = {"CIFAR-100": ("cifar100-resnet19-t4",) * 3}
    if scale not in OWN_DATA:
        sets["DVS-CIFAR10"] = ("dvs-cifar10-resnet19-t10", "dvs-cifar10-resnet19-t10", "dvs-cifar10-resnet19-t4")
    cases = []
    for name, stems in sets.items():
        group = OWN_DATA.get(scale, name)
        for (norm, text), stem in zip({"tdbn": "tdBN", "tebn": "TEBN", "tab": "TAB"}.items(), stems):
            for ending, more in (("", ""), ("-mp", " + MP-Init")):
                label = text + more
                cases.append(Case(label, f"{stem}-{norm}{ending}", deep[label], group))
    return cases


def norms(work: Work) -> Page:
    page = Page("MP-Init on each norm (table 1)")
    for cases in chains(norm_cases(work.scale.name)):
        claims: list[Claim] = [
            (f"MP-Init helps {plain.label}", better.label, plain.label)
            for plain, better in zip(cases[::2], cases[1::2])
        ]
        page.tables.append(accuracy_table(work, work.heading(cases[0], cases[0].group), cases, claims))
    return page


def two_step_cases(scale: str) -> list[Case]:
    stem = "cifar100-resnet19-t2-tdbn"
    return [
        Case("without MP-Init", stem, "deep-resnet19-neither-sgd"),
        Case("with MP-Init", f"{stem}-mp", "deep-resnet19-mp-sgd"),
    ]


def two_steps(work: Work) -> Page:
    cases = two_step_cases(work.scale.name)
    claims = [("MP-Init helps at T = 2", "with MP-Init", "without MP-Init")]
    return Page("MP-Init with two time steps (table 6)", [accuracy_table(work, "tdBN, T = 2", cases, claims)])


def trainable_cases(scale: str) -> list[Case]:
    names = {"learn-none": "neither", "learn-tau": "tau", "learn-threshold": "V", "learn-both": "V and tau"}
    return [Case(label, name) for name, label in names.items()]


def trainable(work: Work) -> Page:
    cases = trainable_cases(work.scale.name)
    claims: list[Claim] = [
        ("training tau alone is worse than nothing", "neither", "tau"),
        ("training V helps", "V", "neither"),
        ("V and tau together are best", "V and tau", "V"),
    ]
    return Page("Which constants are trained (table 12)", [accuracy_table(work, "trained constants", cases, claims)])


def depth_cases(scale: str) -> list[Case]:
    return [
        Case(LABELS[method], "", f"deep-{depth}-{method}-sgd", text, own=True)
        for depth, text in DEPTHS.items()
        for method in METHODS
    ]


def depth(work: Work) -> Page:
    return _by_group(work, "The ablation by depth (own evidence)", depth_cases(work.scale.name))


def optimizer_cases(scale: str) -> list[Case]:
    return [
        Case(LABELS[method], "", f"deep-resnet19-{method}-{name}", text, own=True)
        for name, text in (("sgd", "SGD 0.05, momentum 0.9"), ("adam", "Adam 1e-3"))
        for method in METHODS
    ]


def optimizers(work: Work) -> Page:
    return _by_group(work, "The ablation by optimizer (own evidence)", optimizer_cases(work.scale.name))


def _by_group(work: Work, title: str, cases: list[Case]) -> Page:
    """A table for each group of cases."""
    page = Page(title)
    for group in chains(cases):
        page.tables.append(accuracy_table(work, group[0].group, group, [("both above neither", "both", "neither")]))
    return page


EXPERIMENTS = (
    Experiment("mp-init-norms", "table 1", "MP-Init on tdBN, TEBN and TAB", norms, norm_cases, ALL_SCALES),
    Experiment("ablation", "table 2", "MP-Init and TrSG, alone and together", ablation, ablation_cases, ALL_SCALES),
    Experiment("two-steps", "table 6", "MP-Init with two time steps", two_steps, two_step_cases, ALL_SCALES),
    Experiment("trainable", "table 12", "which of V and tau are trained", trainable, trainable_cases),
    Experiment("depth", "own evidence", "the ablation at three depths", depth, depth_cases, ("mini", "deep")),
    Experiment("optimizers", "own evidence", "the ablation with SGD and Adam", optimizers, optimizer_cases,
               ("mini", "deep")),
)  # fmt: skip

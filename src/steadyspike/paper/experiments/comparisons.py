"""Tables of other methods, energy and overhead: tables 3, 4, 11 and 13, and the text on parameter overhead."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from steadyspike import models
from steadyspike.deploy import fold
from steadyspike.deploy.energy import count_operations
from steadyspike.nn.neurons import NeuronSpec
from steadyspike.paper.experiments.ablation import LABELS, METHODS
from steadyspike.paper.statistics.overhead import growth, overhead, total
from steadyspike.paper.work.accuracy_table import Claim, accuracy_table
from steadyspike.paper.work.experiment import Experiment
from steadyspike.paper.work.page import NOT_RUN, Page, Table, claim, finals, measured, spread
from steadyspike.paper.work.scales import ALL_SCALES
from steadyspike.paper.work.store import Arrays
from steadyspike.paper.work.work import Case, Work, chains, published_text

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

_RESNET = {"tdbn": "tdBN", "tet": "TET", "tebn": "TEBN", "tab": "TAB"}
# data and network -> {method: recipe}
_OTHERS = {
    "ImageNet, ResNet-34": {
        "tdBN, T = 6": "imagenet-resnet34-t6-tdbn-original", "Dspike, T = 6": "imagenet-resnet34-t6-dspike",
        "TEBN, T = 4": "imagenet-resnet34-t4-tebn-original", "TAB, T = 4": "imagenet-resnet34-t4-tab-original",
        "MP-Init + TrSG, T = 4": "imagenet-resnet34-t4", "MP-Init + TrSG, T = 6": "imagenet-resnet34-t6",
    },
    "ImageNet, SEW-ResNet-34, T = 4": {
        "SEW-ResNet": "imagenet-sew-resnet34-t4-original", "TET": "imagenet-sew-resnet34-t4-tet-original",
        "TEBN": "imagenet-sew-resnet34-t4-tebn-original", "IMP+LTS": "imagenet-sew-resnet34-t4-imp-lts-original",
        "MPS": "imagenet-sew-resnet34-t4-mps-original", "EAGD": "imagenet-sew-resnet34-t4-rate-original",
        "MP-Init + TrSG": "imagenet-sew-resnet34-t4",
    },
    "DVS-CIFAR10, ResNet-19, T = 10": {
        "tdBN": "dvs-cifar10-resnet19-t10-tdbn-original", "MPBN": "dvs-cifar10-resnet19-t10-mpbn-original",
        "RMP-Loss": "dvs-cifar10-resnet19-t10-rmp-original", "MP-Init + TrSG": "dvs-cifar10-resnet19-t10",
    },
    "DVS-CIFAR10, 7-layer CNN": {
        "BNTT, T = 20": "dvs-cifar10-cnn7-t20-bntt-original", "TEBN, T = 10": "dvs-cifar10-cnn7-t10-tebn-original",
        "TAB, T = 4": "dvs-cifar10-cnn7-t4-tab-original", "MP-Init + TrSG, T = 4": "dvs-cifar10-cnn7-t4",
    },
}  # fmt: skip


def comparison_cases(scale: str) -> list[Case]:
    """Returns all rows of table 3.

    The scale mini takes CIFAR-10's with T = 2 and 4, because it replaces the other sets by the same digits.
    """
    sets = ("cifar10",) if scale == "mini" else ("cifar10", "cifar100")
    cases = []
    for name in sets:
        for t in (2, 4) if scale == "mini" else (2, 4, 6):
            group = f"{'CIFAR-10' if name == 'cifar10' else 'CIFAR-100'}, ResNet-19, T = {t}"
            others = {text: f"{name}-resnet19-t{t}-{method}-original" for method, text in _RESNET.items()}
            if name == "cifar100":
                others.pop("tdBN")
            rows = {**others, "MP-Init + TrSG": f"{name}-resnet19-t{t}"}
            cases += [Case(text, recipe, "", group) for text, recipe in rows.items()]
    if scale == "paper":
        cases += [Case(text, recipe, "", group) for group, rows in _OTHERS.items() for text, recipe in rows.items()]
    return cases


def comparison(work: Work) -> Page:
    page = Page("Comparison with other methods (table 3)")
    for cases in chains(comparison_cases(work.scale.name)):
        ours = cases[-1].label
        claims: list[Claim] = [(f"{ours} above {c.label}", ours, c.label) for c in cases if "MP-Init" not in c.label]
        heading = work.heading(cases[0], cases[0].group)
        page.tables.append(accuracy_table(work, heading, cases, claims, beside=False))
    return page


def transformer_cases(scale: str) -> list[Case]:
    dvs = {"Spikformer v2": "spikformer", "QKFormer": "qkformer"}
    imagenet = {"SpikingResformer": "spikingresformer-ti", "QKFormer": "qkformer-10-384"}
    alone = {"Spikingformer": "dvs-cifar10-spikingformer-t10-original", "S-Transformer": "dvs-cifar10-sdt-t10-original"}
    cases = [Case(text, recipe, "", "DVS-CIFAR10, T = 10") for text, recipe in alone.items()]
    for stem, names, end, group in (
        ("dvs-cifar10", dvs, "t10", "DVS-CIFAR10, T = 10"), ("imagenet", imagenet, "t4", "ImageNet, T = 4"),
    ):  # fmt: skip
        for text, name in names.items():
            cases += [
                Case(text, f"{stem}-{name}-{end}-original", "", group),
                Case(f"{text} + MP-Init + TrSG", f"{stem}-{name}-{end}", "", group),
            ]
    return cases


def transformers(work: Work) -> Page:
    page = Page("Spiking transformers (table 4)")
    for cases in chains(transformer_cases(work.scale.name)):
        claims: list[Claim] = [
            (f"helps {c.label.split(' +')[0]}", c.label, c.label.split(" +")[0]) for c in cases if "+" in c.label
        ]
        heading = work.heading(cases[0], cases[0].group)
        page.tables.append(accuracy_table(work, heading, cases, claims, beside=False))
    page.notes.append("small ones on real data: python -m benchmarks.proof transformers")
    return page


def qkformer_cases(scale: str) -> list[Case]:
    stem = "imagenet-qkformer-10-384-t4"
    rows = {"QKFormer": "-original", "+ AS-SG": "-as", "+ RS-SG": "-rs", "+ TrSG": ""}
    return [Case(label, f"{stem}{ending}") for label, ending in rows.items()]


def qkformer(work: Work) -> Page:
    cases = qkformer_cases("paper")
    claims: list[Claim] = [(f"TrSG above {c.label}", "+ TrSG", c.label) for c in cases[:-1]]
    table = accuracy_table(work, work.heading(cases[0], "ImageNet, T = 4"), cases, claims)
    return Page("Surrogate gradients of QKFormer (table 11)", [table])


def detection_cases(scale: str) -> list[Case]:
    stem = "coco-ems-resnet10-t3"
    return [Case("EMS-ResNet10", f"{stem}-baseline"), Case("EMS-ResNet10 + MP-Init + TrSG", stem)]


def detection(work: Work) -> Page:
    cases = detection_cases(work.scale.name)
    head = ["network", "paper: mAP at .5", "measured: mAP at .5", "measured: mAP at .5:.95"]
    table = Table(work.heading(cases[0], "COCO, T = 3"), head)
    scores = {}
    for case in cases:
        results = [result for result in work.results(case) if result.finished]
        scores[case.label] = finals(results)
        cells = [spread([result.accuracy[i] for result in results], 3) for i in (-1, 0)]
        table.rows.append([case.label, published_text(case), *cells])
    table.claims.append(claim("MP-Init + TrSG helps", scores["EMS-ResNet10 + MP-Init + TrSG"], scores["EMS-ResNet10"]))
    return Page("Object detection (table 5)", [table], notes=["a small one: steadyspike train detect-demo"])


ENERGY = {
    "neither": "1.03 / 0.14, 1.57",
    "mp": "1.01 / 0.14, 1.57",
    "trsg": "1.13 / 0.14, 1.68",
    "both": "1.12 / 0.14, 1.67",
}


def energy_cases(scale: str) -> list[Case]:
    return [Case(LABELS[m], f"cifar100-resnet19-t4{METHODS[m]}", f"deep-resnet19-{m}-sgd", m) for m in METHODS]


def operations(run: LoadedRun) -> Arrays:
    """Measures ACs and MACs per sample of the folded network on 128 test samples, and ACs as papers count them."""
    batches = [x for x, _ in islice(run.data.eval_loader("test", 64), 2)]
    network = fold(run.model, batches[0], mode="exact", batch_dim=1 if run.data.timesteps is not None else 0)
    report = count_operations(network, batches)
    counts = [report.total("acs"), report.total("macs"), report.total("estimate")]
    return {"counts": np.array(counts), "energy": np.array([report.energy(), report.energy(estimate=True)])}


def energy(work: Work) -> Page:
    page = Page("Operations and energy (table 13)")
    table = Table(
        "per sample, 45 nm fp32",
        [
            "method",
            "paper: ACs / MACs (G), mJ",
            "ACs (M)",
            "ACs, rate x dense (M)",
            "MACs (M)",
            "energy (uJ)",
            "accuracy (%)",
        ],
    )
    additions: dict[str, list[float]] = {}
    accuracy: dict[str, list[float]] = {}
    for case in energy_cases(work.scale.name):
        results = work.results(case)
        counts = [work.measure(result, "operations-1", operations) for result in results]
        additions[case.group] = [float(f["counts"][0]) / 1e3 for f in counts]
        accuracy[case.group] = finals(results)
        if not counts:
            table.rows.append([case.label, ENERGY[case.group], *[NOT_RUN] * 4, NOT_RUN])
            continue
        acs, macs, estimate = np.mean([f["counts"] for f in counts], axis=0) / 1e6
        joule = 1e3 * np.mean([f["energy"][0] for f in counts])
        numbers = [f"{acs:.3f}", f"{estimate:.3f}", f"{macs:.3f}", f"{joule:.3f}"]
        table.rows.append([case.label, ENERGY[case.group], *numbers, measured(results)])
    unit = "ACs, thousands"
    table.claims = [
        claim(f"neither adds more than MP-Init ({unit})", additions["neither"], additions["mp"]),
        claim(f"TrSG adds more than neither ({unit})", additions["trsg"], additions["neither"]),
        claim(f"TrSG adds more than both ({unit})", additions["trsg"], additions["both"]),
        claim("both above neither (accuracy, %)", accuracy["both"], accuracy["neither"]),
    ]
    page.tables.append(table)
    page.notes.append(
        "the paper's 0.14 G MACs are ten times the work of its first layer at T = 4; none of our counts gives this "
        "number. Ours counts the first layer once for a still image"
    )
    return page


def parameter_overhead(work: Work) -> Page:
    plain = NeuronSpec("lif", {"init": "zero", "learn": ()})
    methods = {
        "tdBN (plain)": ("tdbn", plain), "TEBN": ("tebn", plain), "TAB": ("tab", plain),
        "IMP": ("tdbn", NeuronSpec("imp")), "MP-Init + TrSG": ("tdbn", NeuronSpec("lif")),
    }  # fmt: skip
    paper = {"TEBN": "O(LT)", "TAB": "O(LT)", "IMP": "O(N)", "MP-Init + TrSG": "O(L)"}
    table = Table(
        "ResNet-19, T = 4, 32 x 32: what a method stores beyond a plain network",
        ["method", "paper", "counted growth", "trained parameters", "statistics"],
    )
    for label, (norm, neuron) in methods.items():
        model = models.create("resnet19", timesteps=4, norm=norm, neuron=neuron)
        extra = total(overhead(model))
        grows = growth(norm, neuron)
        table.rows.append([label, paper.get(label, "-"), grows, f"{extra.parameters:,}", f"{extra.statistics:,}"])
    page = Page("Parameter overhead (supplement, text)", [table])
    page.notes.append("TAB has a weight and a bias per channel and step, O(LTC); the paper has O(LT)")
    return page


EXPERIMENTS = (
    Experiment("comparison", "table 3", "the methods that the paper compares with", comparison, comparison_cases),
    Experiment("transformers", "table 4", "spiking transformers", transformers, transformer_cases),
    Experiment("detection", "table 5", "EMS-ResNet10 on COCO", detection, detection_cases),
    Experiment("qkformer-gradients", "table 11", "surrogate gradients of QKFormer", qkformer, qkformer_cases),
    Experiment("energy", "table 13", "operations and energy of the ablation", energy, energy_cases,
               ALL_SCALES, 1),
    Experiment("overhead", "supplement, text", "what each method stores", parameter_overhead, scales=("mini", "paper")),
)  # fmt: skip

"""Renders tables of README.md and docs/ from recorded numbers (steadyspike/results/*.json) and the zoo's entries.

    python -m benchmarks.results_page            # write the tables
    python -m benchmarks.results_page --check    # exit code 1 if a page differs from what was recorded

A part of a page stands between two marks, ``<!-- NAME table begins -->`` and ``<!-- NAME table ends -->``, and is one
function of `PARTS`. Nothing is read back from a page: what a table shows is in the JSON files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from steadyspike.paper.experiments import ablation, frozen
from steadyspike.paper.work.flow import COLUMNS, SILENT
from steadyspike.paper.work.over_seeds import NOT_MEASURED
from steadyspike.paper.work.page import NOT_RUN, Page, Table
from steadyspike.paper.work.recorded import Recorded
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Store
from steadyspike.paper.work.work import Case, Row, Work
from steadyspike.zoo.listing import entries

ROOT = Path(__file__).resolve().parent.parent
METHODS = {"-baseline": "neither", "-mp": "MP-Init", "-trsg": "TrSG", "": "both"}
EVIDENCE = (  # label, begin of the recipes' names, their endings in the order of METHODS
    (
        "CIFAR-100, all 50,000 images, ResNet-19 of width 0.25, 12 epochs",
        "cifar100-narrow-", ("neither", "mp", "trsg", "both"),
    ),
    ("CIFAR-10, 8,000 images, 7-layer CNN, 6 epochs", "proof-cifar10-cnn7", tuple(METHODS)),
)  # fmt: skip
PROOF_NETWORKS = {
    "cnn7": "cnn7, width 0.25, 8,000 images, 6 epochs",
    "resnet19": "resnet19, width 0.125, 4,000 images, 5 epochs",
}
TRANSFORMERS = {"spikformer": "Spikformer", "spikingformer": "Spikingformer", "qkformer": "QKFormer"}
TRANSFORMER_SETS = {
    "cifar10": "CIFAR-10 at 16 x 16, 10,000 images, 5 epochs, T = 2",
    "nmnist": "N-MNIST at 16 x 16, 1,000 recordings, 12 epochs, T = 4",
}
GRADIENTS = {
    "proof-digits-as": "gradient of M - V, V and tau fixed (AS-SG)",
    "proof-digits-trsg": "TrSG, V and tau learned",
    "proof-digits-mpd": "MPD-AGL as published (V = 0.5, hard reset)",
    "proof-digits-mpd-on-lif": "MPD-AGL's width on the neuron of the first row",
}
DETECTION = {"proof-bccd-baseline": "neither", "proof-bccd": "MP-Init + TrSG"}
DETECTION_ROWS = {
    "mAP@.5 (COCO)": "",
    "mAP@.5:.95 (COCO)": "AP",
    "red cells, AP@.5": "AP50 of RBC",
    "white cells, AP@.5": "AP50 of WBC",
    "platelets, AP@.5": "AP50 of Platelets",
    "mAP@.5 as YOLO code prints it": "YOLO AP50",
}
STABILIZE = {"stabilize:original": "SpikingJelly", "stabilize:stabilize": "`ss.stabilize`"}
STABILIZE_ROWS = {  # row -> name of the number, decimals
    **{f"test accuracy after step {step} (%)": (f"after step {step}", 1) for step in (1, 2, 3)},
    "test accuracy after step 4 (%)": ("", 1),
    "training loss, last 20 batches": ("training loss", 3),
    "processor time per training step (ms)": ("milliseconds per step", 1),
    "peak memory of the process (MB)": ("megabytes", 0),
}
MINI = {"mini:cifar100-resnet19-t4-tdbn": "without MP-Init", "mini:cifar100-resnet19-t4-tdbn-mp": "with MP-Init"}
MINI_ROWS = {  # row -> name of the number, between two of them, decimals
    "test accuracy after steps 1, 2, 3, 4 (%)": ("accuracy per step", ", ", 1),
    "`firing-rate`: mean over layers, per step": ("firing rate per step", " ", 3),
    "`predictions`: share of the most predicted class, per step": (
        "share of the most predicted class per step", " ", 2,
    ),
    "`pca`: between-class share of the logits' variance, per step": (
        "between-class share of variance per step", " ", 2,
    ),
    "`gradient-cosine`: step 1 with later steps (contribution / step loss)": ("gradient cosine", " / ", 2),
    "`convergence`: membrane's distance to t = 10 at t = 1, 2, 3": ("membrane distance per step", " ", 2),
}  # fmt: skip


@dataclass(frozen=True)
class RecordedWork(Work):
    """An experiment whose numbers come from the recorded ones, not from run folders."""

    recorded: Recorded = field(default_factory=Recorded)

    def row(self, case: Case, beside: bool) -> Row:
        recipe, _ = self.scale.recipe(case.paper, case.deep, case.own)
        final, first = self.recorded.summary(recipe), self.recorded.summary(recipe, "after step 1")
        ends = self.recorded.ended_otherwise(recipe)
        texts = [*([final.written()] if final else []), *([ends] if ends else [])]
        flow = {
            name: summary.mean if (summary := self.recorded.summary(recipe, name)) is not None else None
            for name in ((*COLUMNS, SILENT) if beside else ())
        }
        return Row(final, "; ".join(texts) or NOT_RUN, first.written() if first else "-", flow)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines).replace("|  |", "| |", 1)


def cell(recorded: Recorded, recipe: str, number: str = "", digits: int = 2, seeds: bool = True) -> str:
    """``"76.09 ± 0.04 (3 seeds)"``; without ``seeds`` the spread only."""
    actual, ends = recorded.summary(recipe, number), recorded.ended_otherwise(recipe)
    if actual is None:
        return ends or NOT_RUN
    text = actual.written(digits)
    return "; ".join([text if seeds else text.rpartition(" (")[0], *([ends] if ends else [])])


def first_step(recorded: Recorded, recipe: str) -> str:
    actual = recorded.summary(recipe, "after step 1")
    return f"{actual.mean:.2f}" if actual is not None else "-"


def proof(recorded: Recorded) -> str:
    rows = []
    for net, label in PROOF_NETWORKS.items():
        names = [f"proof-cifar10-{net}{ending}" for ending in METHODS]
        rows.append([f"{label}: test accuracy (%)", *(cell(recorded, name) for name in names)])
        rows.append([f"{label}: after the first step", *(first_step(recorded, name) for name in names)])
    families = {"as": "AS-SG", "rs": "RS-SG", "trsg": "TrSG"}
    frozen_cells = [cell(recorded, f"proof-cifar10-cnn7-frozen-{family}-v0.1") for family in families]
    events = cell(recorded, "proof-nmnist-cnn7")
    tables = [
        grid(["CIFAR-10, T = 2", *METHODS.values()], rows),
        grid(["cnn7, V frozen at 0.1, no MP-Init", *families.values()], [["test accuracy (%)", *frozen_cells]]),
        grid(
            ["N-MNIST (900 training recordings), cnn7, width 0.25, T = 4", "both"],
            [["test accuracy, 100 recordings (%)", events]],
        ),
    ]
    return "\n\n".join([*tables, recorded.stamp()])


def deep_pages(work: Work) -> list[Page]:
    return [
        ablation.ablation(work), frozen.norm_scale(work), ablation.norms(work), ablation.depth(work),
        frozen.length(work), frozen.gain(work), ablation.optimizers(work),
    ]  # fmt: skip


def narrow_pages(work: Work) -> list[Page]:
    return [ablation.ablation(work), ablation.norms(work), frozen.frozen(work)]


def own_evidence(scale: str, pages: Callable[[Work], list[Page]], recorded: Recorded) -> str:
    """The experiments of a scale, in the order of docs/results.md."""
    parts = []
    for page in pages(RecordedWork(Scale(scale), 3, Store(Path("nowhere")), recorded=recorded)):
        parts += [f"### {page.title}", *(shown(table) for table in page.tables), *page.notes]
    return "\n\n".join([*parts, recorded.stamp()]).strip()


def shown(table: Table) -> str:
    """The rows and claims that were measured, and one line with the rows that were not."""
    measured = [row for row in table.rows if NOT_RUN not in row]
    left = "; ".join(row[0] for row in table.rows if NOT_RUN in row)
    if not measured:
        return f"**{table.title}**: {NOT_RUN} yet ({left})"
    claims = [claim for claim in table.claims if not claim.endswith(NOT_MEASURED)]
    text = replace(table, rows=measured, claims=claims).markdown()
    return f"{text}\n\nNot run yet: {left}." if left else text


def transformers(recorded: Recorded) -> str:
    tables = []
    for data, text in TRANSFORMER_SETS.items():
        rows = []
        for net, label in TRANSFORMERS.items():
            names = [f"proof-{data}-{net}{ending}" for ending in ("-baseline", "")]
            firsts = " / ".join(first_step(recorded, name) for name in names)
            rows.append([label, *(cell(recorded, name) for name in names), firsts])
        tables.append(grid([f"{text}: test accuracy (%)", "neither", "MP-Init + TrSG", "after the first step"], rows))
    return "\n\n".join([*tables, recorded.stamp()])


def detection(recorded: Recorded) -> str:
    rows = [
        [label, *(cell(recorded, recipe, number, 3) for recipe in DETECTION)]
        for label, number in DETECTION_ROWS.items()
    ]
    return grid(["BCCD, test part", *DETECTION.values()], rows) + f"\n\n{recorded.stamp()}"


def stabilize(recorded: Recorded) -> str:
    rows = [
        [label, *(cell(recorded, name, number, digits, seeds=False) for name in STABILIZE)]
        for label, (number, digits) in STABILIZE_ROWS.items()
    ]
    setting = "2000 training and 1000 test images, 4 epochs of batch 32, T = 4; other programs used the machine, too."
    return grid(["", *STABILIZE.values()], rows) + f"\n\n{setting} {recorded.stamp()}"


def gradients(recorded: Recorded) -> str:
    rows = [[label, cell(recorded, name), first_step(recorded, name)] for name, label in GRADIENTS.items()]
    head = ["embedded digits, cnn7, width 0.25, T = 4, no MP-Init", "test accuracy (%)", "after the first step"]
    return grid(head, rows) + f"\n\n{recorded.stamp()}"


def mini(recorded: Recorded) -> str:
    rows = [
        [label, *(sep.join(f"{v:.{digits}f}" for v in recorded.series(name, number)) for name in MINI)]
        for label, (number, sep, digits) in MINI_ROWS.items()
    ]
    return grid(["command", *MINI.values()], rows) + f"\n\n{recorded.stamp()}"


def zoo(_: Recorded) -> str:
    head = ["name", "network and data", "test score after each step", "of", "parameters", "firing rate", "size (MB)"]
    rows = [
        [f"`{entry.name}`", entry.about, entry.written, f"{entry.samples:,}", f"{entry.parameters:,}",
         f"{entry.numbers.firing_rate:.1%}", f"{entry.megabytes:.2f}"]
        for entry in entries()
    ]  # fmt: skip
    return grid(head, rows)


def evidence(recorded: Recorded) -> str:
    """README's tables: the ablation, and the trained networks with their last score."""
    ablations = []
    for label, recipe, endings in EVIDENCE:
        names = [f"{recipe}{ending}" for ending in endings]
        ablations.append([label, *(cell(recorded, name) for name in names)])
        ablations.append(
            ["the same network after the first of two time steps", *(first_step(recorded, name) for name in names)]
        )
    networks = [
        [f"`{entry.name}`", entry.about, f"{entry.scores.split(', ')[-1]} {entry.unit}",
         f"{entry.parameters:,}", f"{entry.numbers.firing_rate:.0%}"]
        for entry in entries()
    ]  # fmt: skip
    head = ["trained network", "what it is", "test score", "parameters", "firing rate"]
    return f"{grid(['test accuracy (%)', *METHODS.values()], ablations)}\n\n{grid(head, networks)}"


def end_to_end(recorded: Recorded) -> str:
    """The newest network that `benchmarks/end_to_end.py` measured."""
    runs = recorded.of("end-to-end:cifar10-resnet19")
    if not runs:
        return NOT_RUN
    run = runs[-1]
    n = run.numbers
    images = f"{n['samples']:,.0f} test images"
    rows = [
        [f"test accuracy ({images})", f"{run.value:.2f} %"],
        [f"proof on 64 test images: spikes that differ in the worst of {n['neuron layers']:.0f} layers",
         f"float64: {n['spikes that differ in float64']:.2g} %, float32: {n['spikes that differ in float32']:.2g} %"],
        ["folded network, float32", f"{n['folded']:.2f} %: {n['decided differently']:.0f} images decided differently"],
        ["model and folded network, float64",
         f"{n['model in float64']:.2f} %: {n['decided differently in float64']:.0f} images decided differently"],
        ["integers (int8)", f"{n['int8']:.2f} %"],
        [f"operations per image ({n['samples for energy']:,.0f} images, {n['firing rate']:.1%} of the neurons fire)",
         f"{n['million ACs']:.1f} M AC and {n['million MACs']:.2f} M MAC: {n['microjoules']:.1f} uJ at 45 nm "
         "(0.9 and 4.6 pJ)"],
    ]  # fmt: skip
    for confidence, accuracy, steps in zip(
        *(recorded.series(run.recipe, f"early exit: {what}") for what in ("confidence", "accuracy", "steps"))
    ):
        rows.append([f"stop at a confidence of {confidence:g}", f"{accuracy:.2f} % after {steps:.2f} steps on average"])
    files = ", ".join(
        f"{name.removeprefix('MB of ')} {size:.1f} MB" for name, size in n.items() if name.startswith("MB of ")
    )
    rows.append(["files written", files])
    return f"{grid(['`cifar10-resnet19` of the zoo', ''], rows)}\n\n{recorded.stamp()}"


def time_to_accuracy(recorded: Recorded) -> str:
    from benchmarks.time_to_accuracy import table  # which writes these pages

    return table(recorded)


PARTS: dict[str, tuple[str, Callable[[Recorded], str]]] = {
    "narrow": ("docs/results.md", partial(own_evidence, "narrow", narrow_pages)),
    "proof": ("docs/results.md", proof),
    "deep": ("docs/results.md", partial(own_evidence, "deep", deep_pages)),
    "transformer": ("docs/results.md", transformers),
    "detection": ("docs/results.md", detection),
    "stabilize": ("docs/results.md", stabilize),
    "mini": ("docs/reproduce.md", mini),
    "gradient": ("docs/methods.md", gradients),
    "zoo": ("docs/zoo.md", zoo),
    "end": ("docs/deploy.md", end_to_end),
    "time": ("docs/benchmarks.md", time_to_accuracy),
    "evidence": ("README.md", evidence),
}


def rendered(page: str) -> str:
    """The text of a page with all its parts as they were recorded."""
    text, recorded = (ROOT / page).read_text(), Recorded()
    for name, (where, part) in PARTS.items():
        if where == page:
            begin, end = f"<!-- {name} table begins -->", f"<!-- {name} table ends -->"
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n\n{part(recorded)}\n\n{end}{rest.partition(end)[2]}"
    return text


def write() -> list[str]:
    """Writes the pages; the names of those that changed."""
    changed = [page for page in dict.fromkeys(where for where, _ in PARTS.values()) if _differs(page)]
    for page in changed:
        (ROOT / page).write_text(rendered(page))
    return changed


def _differs(page: str) -> bool:
    return rendered(page) != (ROOT / page).read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page differs")
    if parser.parse_args().check:
        differ = [page for page in dict.fromkeys(where for where, _ in PARTS.values()) if _differs(page)]
        print("\n".join(f"{page} is not what was recorded" for page in differ) or "all pages are as recorded")
        return bool(differ)
    print("\n".join(f"{page} written" for page in write()) or "all pages are as recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())

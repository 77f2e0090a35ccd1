"""Trains the zoo's networks and the ablation on CIFAR-100, one after the other; stop it at any time.

    python -m benchmarks.zoo --data-dir DATA [--out runs/zoo]      # prints what is done and left, trains the rest
    python -m benchmarks.zoo --data-dir DATA --share 1/2           # every second run: one process a core
    python -m benchmarks.zoo --data-dir DATA --only spikformer     # recipes with such a word
    python -m benchmarks.zoo --show                                # how far it is
    python -m benchmarks.zoo --data-dir DATA --write               # record the ablation; render docs/results.md, figure

A run is done if it ended in OUT, if its number is recorded (`steadyspike/results/`), or if its network is in the zoo.
If its recipe starts with the weights of another recipe (`train.start`), that one is trained before it.
Runs that another machine began are in benchmarks/unfinished: copy them to OUT/runs, and they continue from there.
Delete each of them when its result is recorded.

Set OMP_NUM_THREADS=1. Runs are in OUT/runs; `steadyspike zoo --add` makes an entry of one. The ablation's tables and
figures: `steadyspike reproduce ablation --scale narrow --show --out OUT`.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence

from benchmarks import ablation_figure, results_page
from benchmarks.evidence import arguments, record_all, train
from rich.console import Console

from steadyspike.paper.experiments import ablation, frozen
from steadyspike.paper.work.planned_run import Run
from steadyspike.paper.work.recorded import Recorded
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Store
from steadyspike.paper.work.work import Work
from steadyspike.zoo.listing import entries

ZOO = (
    "digits-cnn7", "nmnist-cnn7", "dvs128-objects-cnn7", "bccd-emsyolo", "imagenette-msresnet18", "cifar10-resnet19",
    "cifar10-spikformer", "cifar100-resnet19",
)  # fmt: skip
TABLES = (ablation.ablation_cases, ablation.norm_cases, frozen.frozen_cases)  # three seeds of the first, then one


def order() -> list[Run]:
    """What is trained, in order: the ablation's first seed, the zoo from the quickest on, then what is left of both."""
    scale = Scale("narrow")
    first, *others = ([scale.recipe(case.paper, case.deep)[0] for case in cases("narrow")] for cases in TABLES)
    neither, *alone, both = first
    seeds = [[Run(name, seed=seed) for name in (neither, both, *alone)] for seed in range(3)]
    zoo = [Run(f"zoo-{name}") for name in ZOO]
    rest = [Run(name) for names in others for name in names]
    return list(dict.fromkeys([*seeds[0], *zoo, *seeds[1], *seeds[2], *rest]))


def with_earlier(run: Run, store: Store) -> list[Run]:
    """The runs that ``run`` starts with (``train.start = "runs/RECIPE/001"``), then ``run``; all start in ``store``."""
    match = re.fullmatch(r"runs/([\w-]+)/001", run.load().train.start or "")
    if match is None:
        return [run]
    earlier = with_earlier(Run(match[1], seed=run.seed), store)
    start = f"train.start={store.folder(earlier[-1]).root}"
    return [*earlier, Run(run.recipe, (*run.settings, start), run.seed)]


def already(runs: Sequence[Run]) -> dict[Run, str]:
    """The runs that need no training, because their result is part of the library, and that result."""
    recorded, networks = Recorded(), {f"zoo-{entry.name}": entry.written for entry in entries()}
    done = {}
    for run in runs:
        if run.recipe in networks:
            done[run] = f"in the zoo, {networks[run.recipe]}"
        for entry in recorded.newest(run.recipe):
            if entry.seed == run.seed:
                done[run] = f"recorded, {entry.value:.4g}"
    return done


def progress(store: Store, run: Run) -> str:
    """How far a run is, in a few words."""
    if (result := store.result(run)) is not None:
        return f"{result.status}, {', '.join(f'{score:.4g}' for score in result.accuracy)}"
    try:
        with (store.folder(run).root / "metrics.csv").open() as file:
            epochs = sum(1 for _ in csv.DictReader(file))
    except OSError:
        return "not begun"
    return f"{epochs} of {run.load().schedule.epochs} epochs"


def show(store: Store, runs: Sequence[Run], done: dict[Run, str], console: Console) -> None:
    """Prints every run and how far it is; scores are accuracies after each step, or a detector's two APs."""
    for run in runs:
        for part in [run] if run in done else with_earlier(run, store):
            console.print(f"{part.label:44} {done.get(run) or progress(store, part)}", markup=False)
    left = store.missing(with_earlier(run, store)[-1] for run in runs if run not in done)
    console.print(f"{len(runs) - len(left)} of {len(runs)} runs are done")


def main() -> None:
    args = arguments(__doc__, "runs/zoo")
    console = Console(highlight=False, width=200)
    work = Work(Scale("narrow"), 1, Store(args.out), args.data_dir)
    start, stride = args.share
    runs = [run for run in order() if not args.only or any(word in run.recipe for word in args.only)]
    done = already(runs)
    show(work.store, runs, done, console)
    if args.write:
        record_all(work, [run for run in runs if not run.recipe.startswith("zoo-")], console)
        changed = [*results_page.write(), *ablation_figure.write()]
        console.print("written: " + (", ".join(changed) or "nothing has changed"))
    elif not args.show:
        left = [run for run in runs if run not in done][start::stride]
        parts = dict.fromkeys(part for run in left for part in with_earlier(run, work.store))
        sys.exit(train(work, [*parts], args.limit, console, measured=False))


if __name__ == "__main__":
    main()

"""Evidence from a deep network: trains the ``deep-*`` recipes and records their numbers, which docs/results.md shows.

    python -m benchmarks.evidence --data-dir DATA [--out runs/evidence] [--limit HOURS]    # trains; stop it at any time
    python -m benchmarks.evidence --data-dir DATA --share 1/2                              # every second run
    python -m benchmarks.evidence --data-dir DATA --only long adam                         # recipes with such a word
    python -m benchmarks.evidence --out runs/evidence --show                               # how far it is
    python -m benchmarks.evidence --out runs/evidence --data-dir DATA --write              # record and render

A process trains one run after the other; set OMP_NUM_THREADS=1, and start one process a core with ``--share``. What
matters most comes first (`order`), and every part goes seed by seed, so that a list that was cut short still compares
like with like. What is missing can be trained on another machine, whose folder has nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import results_page
from rich.console import Console

from steadyspike.core.heap import keep_freed_memory
from steadyspike.paper.experiments import ablation, frozen
from steadyspike.paper.runner import Interrupted, train_missing
from steadyspike.paper.work.flow import KIND, flow, flow_numbers
from steadyspike.paper.work.planned_run import Run
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Arrays, Result, Store
from steadyspike.paper.work.work import Case, Work
from steadyspike.results.recording import record
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.tables import read_table
from steadyspike.train.state.signals import Signals, Stopped, exit_code

SEEDS = 3
BY_LAYER = {"V by layer": "threshold", "tau by layer": "tau"}  # columns of layers.csv


class Part(NamedTuple):
    """A part of the evidence: its name, its cases, and the seeds that are trained at this place of the order."""

    name: str
    cases: list[Case]
    seeds: tuple[int, ...] = tuple(range(SEEDS))


def frozen_at(v: float) -> list[Case]:
    """The cases of one threshold, with both norms."""
    return [case for case in frozen.norm_scale_cases("deep") if f"-v{v}" in case.deep]


def order() -> list[Part]:
    """What is trained, in order; a run that came before is not trained again.

    First the ablation with all its seeds, since all else is read against it; then one seed of what else is short, then
    all of it; what takes longest, or repeats the ablation with another optimizer, comes last.
    V frozen at 1 with the plain norm has no separate part: it is the ablation's "neither".
    """
    both = [case for case in ablation.depth_cases("deep") if case.label in ("neither", "both")]
    first = [
        Part("ablation", ablation.ablation_cases("deep"), (0,)),
        Part("V frozen at 0.1", frozen_at(0.1), (0,)),
        Part("ablation", ablation.ablation_cases("deep")),
        Part("gain of the norms at V = 0.1", frozen.gain_cases("deep"), (0,)),
        Part("norms", ablation.norm_cases("deep"), (0,)),
        Part("depth, neither and both", both, (0,)),
        Part("V frozen at 2, and at 1 with the scaled norm", frozen_at(2.0) + frozen_at(1.0), (0,)),
    ]
    rest = [
        Part("V frozen at 0.1", frozen_at(0.1)),
        Part("norms", ablation.norm_cases("deep")),
        Part("V frozen at 2, and at 1 with the scaled norm", frozen_at(2.0) + frozen_at(1.0)),
        Part("depth, neither and both", both),
        Part("depth, all", ablation.depth_cases("deep")),
        Part("long training", frozen.length_cases("deep"), (0,)),
        Part("Adam", ablation.optimizer_cases("deep"), (0,)),
        Part("long training", frozen.length_cases("deep")),
        Part("Adam", ablation.optimizer_cases("deep")),
    ]
    return first + rest


def all_runs(work: Work, words: Sequence[str] = ()) -> list[Run]:
    """All runs in their order, each once; with ``words`` those whose recipe's name has one of them."""
    runs = [run for part in order() for run in work.all_runs(part.cases) if run.seed in part.seeds]
    return [run for run in dict.fromkeys(runs) if not words or any(word in run.recipe for word in words)]


def share(text: str) -> tuple[int, int]:
    """``"2/3"``, the second of three shares, as (1, 3)."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write K/N, K from 1 to N, for example 1/2")
    return int(number) - 1, int(of)


def train(work: Work, runs: Sequence[Run], hours: float, console: Console, measured: bool = True) -> int:
    """Trains run by run, and with ``measured`` also records how gradients flow; the exit code."""
    keep_freed_memory()
    ends = time.monotonic() + 3600 * hours
    with Signals(commands=True) as signals:
        try:
            for run in runs:
                if time.monotonic() > ends:
                    console.print("the time limit is reached; the same command continues from here")
                    break
                if work.store.result(run) is None:
                    todo = len(work.store.missing(runs))
                    console.print(f"{time.strftime('%H:%M:%S')} {run.label} ({todo} runs left)")
                    train_missing([run], work.store, work.data_dir, console, signals)
                result = work.store.result(run)
                if measured and result is not None:
                    work.measure(result, KIND, flow)
        except (Interrupted, Stopped) as stop:
            console.print("stopped; the same command continues from here")
            return exit_code(stop.number)
    return 0


def by_layer(result: Result, arrays: Arrays) -> dict[str, list[float]]:
    """V, tau, firing rate and shift of every spiking layer of a trained network, in the order of the network."""
    last = {row["layer"]: row for row in read_table(result.folder / "layers.csv")}  # later epochs replace earlier ones
    rows = [last[name] for name in arrays["layers"].tolist()]
    measured = {"firing rate by layer": arrays["rates"].mean(1), "shift by layer": arrays["shift"]}
    return {
        **{name: [round(float(row[column]), 5) for row in rows] for name, column in BY_LAYER.items()},
        **{name: [round(float(value), 5) for value in values] for name, values in measured.items()},
    }


def record_all(work: Work, runs: Sequence[Run], console: Console) -> None:
    """Records the runs that have ended, with what was measured on their networks; measures what is missing."""
    for run in runs:
        result = work.store.result(run)
        if result is None:
            continue
        try:
            arrays = work.measure(result, KIND, flow)
            entry = record(RunFolder(result.folder), run.recipe, {**flow_numbers(arrays), **by_layer(result, arrays)})
            console.print(f"recorded {entry.value} (seed {entry.seed}) of {entry.recipe}")
        except RunError as error:
            console.print(str(error))


def arguments(description: str | None, out: str) -> argparse.Namespace:
    """The options of this program and of `benchmarks.zoo`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--limit", type=float, default=1e6, metavar="HOURS")
    parser.add_argument("--share", type=share, default=(0, 1), metavar="K/N", help="every N-th run from the K-th on")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD", help="recipes whose name has one of these")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--write", action="store_true", help="record the numbers, and render docs/results.md")
    return parser.parse_args()


def main() -> None:
    args = arguments(__doc__, "runs/evidence")
    console = Console(highlight=False, width=200)
    work = Work(Scale("deep"), SEEDS, Store(args.out), args.data_dir)
    if args.show:
        for part in order():
            runs = [run for run in work.all_runs(part.cases) if run.seed in part.seeds]
            done = len(runs) - len(work.store.missing(runs))
            console.print(f"{part.name}, seeds {', '.join(map(str, part.seeds))}: {done} of {len(runs)} runs")
        return
    if args.write:
        record_all(work, all_runs(work), console)
        console.print("written: " + (", ".join(results_page.write()) or "nothing has changed"))
        return
    start, stride = args.share
    sys.exit(train(work, all_runs(work, args.only)[start::stride], args.limit, console))


if __name__ == "__main__":
    main()

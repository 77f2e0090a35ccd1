"""A network that learned, on images of its data, against SpikingJelly's PLIF, with one thread and with two.

    python -m benchmarks.trained [--network cifar10-resnet19] [--threads 1 2] [--quick] [--markdown docs/benchmarks.md]
                                 [--readme README.md]

Prints the network's firing rates (learned.py), measures as run.py does, and shows where the time of our step goes.
Every case is written to benchmarks/results/trained.json when it is done. If the command is stopped and started again,
it continues after the last case, unless the code, the network or the machine has changed. Freed memory is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import learned, machine, result_tables, run
from benchmarks.cases import Case, trained_cases
from benchmarks.contenders import OURS, PLIF
from benchmarks.shares import share_table

LINE = ("<!-- speed: written by benchmarks/trained.py -->", "<!-- end of speed -->")
MARKS = ("<!-- trained network: written by benchmarks/trained.py -->", "<!-- end of trained network -->")
FILE = learned.FOLDER / "trained.json"
GIB = 24  # memory limit of one process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--network", default=learned.NAME, help="a ResNet-19 of the zoo, or the folder or a checkpoint of a run"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per measurement and round")
    parser.add_argument("--quick", action="store_true", help="one small network: to try the program; writes no file")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; write the tables of the cases that are already measured"
    )
    parser.add_argument("--markdown", type=Path, help="a file with the marks between which the tables go")
    parser.add_argument("--readme", type=Path, help="a file with the marks between which the table of ratios goes")
    args = parser.parse_args()
    pages = ((args.markdown, MARKS), (args.readme, LINE))
    problems = [result_tables.why_not_writable(path, marks) for path, marks in pages if path]
    if any(problems):
        print("\n".join(filter(None, problems)))
        return 2
    width = learned.network(args.network).recipe.model.width
    cases = trained_cases(args.network, width, args.quick)
    rates = {case.steps: learned.rates(args.network, width, case.steps) for case in cases}
    tables = [learned.rate_table(args.network, width, steps, by_layer) for steps, by_layer in rates.items()]
    print("\n\n".join(tables), flush=True)
    learned.FOLDER.mkdir(exist_ok=True)
    results = _read(args.network, args.quick)
    sections = []
    for threads in args.threads:
        for case in cases:
            key = f"{case}, {threads} threads"
            if key not in results["cases"] and args.table:
                sections.append(f"**{key}**: not measured yet")
                continue
            if key not in results["cases"]:
                mean = sum(rates[case.steps].values()) / len(rates[case.steps])
                results["cases"][key] = {**_measured(case, threads, args), "rate": mean}
                if not args.quick:
                    FILE.write_text(json.dumps(results, indent=1))
            sections.append(_section(case, threads, results["cases"][key]))
            print(f"\n{sections[-1]}", flush=True)
    described = results["machine"]
    table = speed_table(results["cases"], result_tables.kind(described))
    print(f"\n{table}")
    if args.readme and not args.quick and table:
        before, rest = args.readme.read_text().split(LINE[0], 1)
        args.readme.write_text(f"{before}{LINE[0]}\n{table}\n{LINE[1]}{rest.split(LINE[1], 1)[1]}")
    if args.markdown and not args.quick:
        head = f"Commit {described['commit']}, {described['time'][:10]}; load {described['load']} at the start."
        folded_rates = result_tables.folded("Firing rates of every layer", "\n\n".join(tables))
        text = "\n\n".join([head, *sections, folded_rates])
        result_tables.put_between_marks(args.markdown, result_tables.kind(described), text, MARKS)
    return 0


def _read(network: str, quick: bool) -> dict[str, Any]:
    """Returns what was measured before with this code and network on this kind of machine."""
    now = machine.describe(0)
    if not quick and FILE.exists():
        results = json.loads(FILE.read_text())
        same = all(results["machine"][key] == now[key] for key in ("cpu", "instruction_set", "versions", "commit"))
        if same and results.get("network") == network:
            return results
    return {"machine": now, "network": network, "cases": {}}


def _measured(case: Case, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    pool = run.Pool(threads, GIB)
    options = argparse.Namespace(rounds=args.rounds, budget=args.budget)
    rows = run.measure(case, options, pool)
    worker = pool.get(OURS, "kept")
    worker.ask(prepare=(type(case).__name__, asdict(case)))
    parts = {metric: worker.ask(shares=metric) for metric in ("train", "forward")}
    pool.close()
    return {"rows": rows, "shares": parts}


def speed_table(cases: dict[str, Any], kind: str) -> str:
    """Returns the ratios to SpikingJelly's PLIF of all cases as a table; empty if there are none."""
    rows: list[str] = []
    for name, case in cases.items():
        ours, theirs = case["rows"].get(OURS, {}), case["rows"].get(PLIF, {})
        numbers = [ours.get("train"), theirs.get("train"), ours.get("forward"), theirs.get("forward")]
        if all(isinstance(number, float) for number in numbers):
            step, evaluation = numbers[1] / numbers[0], numbers[3] / numbers[2]
            short = (
                name.replace(", trained, freed memory kept", "")
                .replace("ResNet-19, ", "")
                .replace("1 threads", "1 thread")
            )
            rows.append(f"| {short} | {case['rate']:.0%} | {step:.1f} | {evaluation:.1f} |")
    if not rows:
        return ""
    source = f"{kind}; [benchmarks](docs/benchmarks.md)"
    head = "Training and evaluation of the same ResNet-19 that learned CIFAR-10, as a multiple of the speed of"
    head += f" SpikingJelly's PLIF\n({source}):"
    return "\n".join([head, "", "| network | firing | training step | evaluation |", "|---|---|---|---|", *rows])


def _section(case: Case, threads: int, measured: dict[str, Any]) -> str:
    name = f"{case}, {threads} thread{'s' * (threads > 1)}"
    tables = [result_tables.case_table(name, measured["rows"])]
    goals = result_tables.goal_table([case], {str(case): measured["rows"]})
    if goals.count("\n") > 1:
        tables.append(goals)
    titles = {"train": "a step of SteadySpike", "forward": "an evaluation of SteadySpike"}
    shares = [
        share_table(f"Where the time of {title} goes", measured["shares"][metric])
        for metric, title in titles.items()
        if "all" in measured["shares"].get(metric, {})
    ]
    if shares:
        tables.append(result_tables.folded("Where the time goes", "\n\n".join(shares)))
    return "\n\n".join(tables)


if __name__ == "__main__":
    sys.exit(main())

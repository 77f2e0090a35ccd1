"""Speed and memory against other libraries and against a copy of the same bytes: ``make bench``.

    python benchmarks/run.py [--quick] [--only ResNet] [--rounds 5] [--threads 2] [--markdown docs/benchmarks.md]

The kernels' tests run first; if one fails, nothing is timed. Every contender has its own process with a fixed number of
threads; they take turns, round by round, and the shortest time counts, because a machine's other work can only add.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import gate, machine, result_tables  # noqa: E402
from benchmarks.cases import Case, all_cases  # noqa: E402
from benchmarks.contenders import COPIES  # noqa: E402

# For peaks, every tensor has its own pages: the process then shrinks when a tensor is freed.
OWN_PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Worker:
    """A process of worker.py."""

    def __init__(self, contender: str, threads: int, memory: float, pages: str) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", contender, str(threads), str(memory), pages]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(OWN_PAGES if pages == "own" else {})}
        pipe = subprocess.PIPE
        log = open(ROOT / "benchmarks/results/workers.log", "a")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            return {"error": "the process died"}

    def close(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; what it was asked for is reported as failed
            self.process.stdin.close()
        self.process.wait()


def failed(answer: Any) -> bool:
    return isinstance(answer, dict)


class Pool:
    """A process per contender and way to allocate, kept for one case."""

    def __init__(self, threads: int, memory: float) -> None:
        self.threads, self.memory = threads, memory
        self._workers: dict[tuple[str, str], Worker] = {}

    def get(self, contender: str, pages: str) -> Worker:
        """pages: "default", "kept" (see `keep_freed_memory`) or "own" (one mapping per tensor, for peaks)."""
        key = contender, pages
        if key not in self._workers or self._workers[key].process.poll() is not None:
            self._workers[key] = Worker(contender, self.threads, self.memory, pages)
        return self._workers[key]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers = {}


def measure(case: Case, args: argparse.Namespace, pool: Pool) -> dict[str, dict[str, Any]]:
    """metric by contender; contenders take turns, and only the one whose turn it is holds its tensors."""
    expected = {"prepare": (type(case).__name__, asdict(case))}
    rows: dict[str, dict[str, Any]] = {name: {} for name in case.contenders}
    for _ in range(max(2, args.rounds // 2) if case.slow else args.rounds):
        for name, row in rows.items():
            worker = pool.get(name, "kept" if case.kept else "default")
            prepared = worker.ask(**expected)
            for metric in ("forward", "train"):
                answer = prepared if failed(prepared) else worker.ask(time=metric, budget=args.budget)
                if failed(answer) or failed(row.get(metric)):
                    row[metric] = answer if failed(answer) else row[metric]
                else:
                    row[metric] = min(answer, row.get(metric, answer))
            worker.ask(drop=1)
    for name, row in rows.items():
        if name not in COPIES and not failed(row.get("train")):
            worker = pool.get(name, "own")
            answer = worker.ask(**expected)
            row["peak"] = answer if failed(answer) else worker.ask(peak=1)
            worker.ask(drop=1)
    pool.close()  # some libraries keep tensors that they should drop, and the next case may need the memory
    return rows


def refusal(args: argparse.Namespace, cases: list[Case]) -> str | None:
    """What is wrong with the command, found before half an hour is spent on it."""
    if not cases:
        return f"no case's name contains {args.only!r}; there are: " + "; ".join(map(str, all_cases(args.quick)))
    if args.markdown and (args.only or args.quick):
        return "--markdown takes the tables of a whole run; leave out --only and --quick"
    if args.resume and (problem := _not_the_same(args)) is not None:
        return problem
    return result_tables.why_not_writable(args.markdown) if args.markdown else None


def _not_the_same(args: argparse.Namespace) -> str | None:
    """Why a stopped run cannot be continued: numbers of two states of the code must not be in one table."""
    if not args.resume.is_file():
        return f"there is no file {args.resume}"
    then, now = json.loads(args.resume.read_text())["machine"], machine.describe(args.threads)
    changed = [key for key in ("cpu", "instruction_set", "threads", "versions", "commit") if then.get(key) != now[key]]
    return f"{args.resume} was measured with another {', '.join(changed)}" if changed else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three cases, two rounds")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per measurement and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory", type=float, default=14, help="GiB that one process may take")
    parser.add_argument("--markdown", type=Path, help="a file with the marks between which the tables go")
    parser.add_argument("--resume", type=Path, help="the JSON of a run that was stopped: its cases are not run again")
    parser.add_argument("--no-gate", action="store_true", help="for work on the benchmark itself: nothing is written")
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    cases = [case for case in all_cases(args.quick) if args.only is None or args.only.lower() in str(case).lower()]
    wrong = refusal(args, cases)
    if wrong is not None:
        print(wrong)
        return 2
    (ROOT / "benchmarks/results").mkdir(exist_ok=True)
    if not args.no_gate and not gate.passed():
        print("the kernels' tests fail: no speed is reported")
        return 1
    described = machine.describe(args.threads)
    results: result_tables.Results = {}
    target = args.resume or ROOT / "benchmarks/results" / f"{described['time'].replace(':', '')}.json"
    if args.resume:
        before = json.loads(args.resume.read_text())
        described, results = {**described, "time": before["machine"]["time"]}, before["results"]
    pool = Pool(args.threads, args.memory)
    for case in cases:
        if str(case) not in results:
            results[str(case)] = measure(case, args, pool)
            if not args.no_gate:
                target.write_text(json.dumps({"machine": described, "results": results}, indent=1))
        print(f"\n{result_tables.case_table(case, results[str(case)])}", flush=True)
    print(f"\n{result_tables.goal_table(cases, results)}")
    if not args.no_gate:
        print(f"\nwritten to {target}")
        if args.markdown:
            tables = result_tables.markdown(cases, results, described)
            result_tables.put_between_marks(args.markdown, result_tables.kind(described), tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())

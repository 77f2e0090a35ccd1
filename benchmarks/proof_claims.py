"""The claims on real data: trains the ``proof-*`` recipes with three seeds each and writes docs/results.md's table.

    python -m benchmarks.proof_claims --data-dir DATA [--jobs 2] [--out runs/proof] [--only cnn7]

Each run is a process of its own with one thread (`steadyspike train`). Runs that are there already are kept, so the
script can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from benchmarks.machine import describe

from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.run.recording import record

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results.md"
MARKS = ("<!-- proof table begins -->", "<!-- proof table ends -->")
VARIANTS = {"-baseline": "neither", "-mp": "MP-Init", "-trsg": "TrSG", "": "both"}
SEEDS = (0, 1, 2)


def planned(only: str) -> list[tuple[str, int]]:
    """(recipe, seed) in the order they are run: what matters most first."""
    runs = [(f"proof-cifar10-{net}{v}", s) for net in ("cnn7", "resnet19") for s in SEEDS for v in VARIANTS]
    runs += [(f"proof-cifar10-cnn7-frozen-{f}-v0.1", s) for s in SEEDS for f in ("as", "rs", "trsg")]
    runs.insert(12, ("proof-nmnist-cnn7", 0))
    return [run for run in runs if only in run[0]]


def train(recipe: str, seed: int, out: Path, data: Path) -> Path:
    folder = out / f"{recipe}-seed{seed}"
    if not ended([folder]):  # an interrupted run has a result, too, and goes on
        command = [Path(sys.executable).with_name("steadyspike"), "train", recipe, "--set", f"train.seed={seed}"]
        command += ["--data-dir", data, "--out", folder] + (["--resume"] if folder.exists() else [])
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{recipe}, seed {seed}: {done.stdout[-500:]}\n{done.stderr[-2000:]}")
        print(f"{recipe}, seed {seed}: {summary(folder)}", flush=True)
    return folder


def outcome(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def summary(folder: Path) -> str:
    result = outcome(folder)
    if not result.get("test"):
        return result["status"]
    test = result["test"]
    if "accuracy" not in test:
        return f"{result['status']}, test mAP@.5 {test['AP50']:.3f}, mAP@.5:.95 {test['AP']:.3f} (COCO)"
    return f"{result['status']}, test {', '.join(f'{a:.2f}' for a in test['accuracy'])} %"


def ended(folders: list[Path]) -> list[dict]:
    """Results of the runs that came to an end."""
    results = [outcome(f) for f in folders if (f / "result.json").exists()]
    return [r for r in results if r["status"] != "interrupted"]


def cell(folders: list[Path]) -> str:
    """Test accuracy after the last step as mean +- standard deviation over seeds, or what happened instead."""
    results = ended(folders)
    if not results:
        return "not run"
    ends = [r["test"]["accuracy"][-1] for r in results if r["status"] == "finished"]
    other = [r["status"] for r in results if r["status"] != "finished"]
    text = f"{statistics.mean(ends):.2f}" if ends else ""
    if len(ends) > 1:
        text += f" ± {statistics.stdev(ends):.2f}"
    note = f"{len(results)} seeds" if len(results) > 1 else "1 seed"
    return " ".join([text, *sorted(set(other)), f"({note})"]).strip()


def first_step(folders: list[Path]) -> str:
    results = ended(folders)
    firsts = [r["test"]["accuracy"][0] for r in results if r["status"] == "finished"]
    return f"{statistics.mean(firsts):.2f}" if firsts else "-"


def table(out: Path) -> str:
    def folders(recipe: str, seeds: tuple[int, ...] = SEEDS) -> list[Path]:
        return [out / f"{recipe}-seed{s}" for s in seeds]

    rows = ["| CIFAR-10, T = 2 | neither | MP-Init | TrSG | both |", "|---|---|---|---|---|"]
    for net, label in (
        ("cnn7", "cnn7, width 0.25, 8,000 images, 6 epochs"),
        ("resnet19", "resnet19, width 0.125, 4,000 images, 5 epochs"),
    ):
        names = [f"proof-cifar10-{net}{v}" for v in VARIANTS]
        rows.append(f"| {label}: test accuracy (%) | " + " | ".join(cell(folders(n)) for n in names) + " |")
        rows.append(f"| {label}: after the first step | " + " | ".join(first_step(folders(n)) for n in names) + " |")
    rows += ["", "| cnn7, V frozen at 0.1, no MP-Init | AS-SG | RS-SG | TrSG |", "|---|---|---|---|"]
    frozen = [cell(folders(f"proof-cifar10-cnn7-frozen-{f}-v0.1")) for f in ("as", "rs", "trsg")]
    rows.append("| test accuracy (%) | " + " | ".join(frozen) + " |")
    rows += ["", "| N-MNIST (900 training recordings), cnn7, width 0.25, T = 4 | both |", "|---|---|"]
    rows.append(f"| test accuracy, 100 recordings (%) | {cell(folders('proof-nmnist-cnn7', (0,)))} |")
    return "\n".join(rows)


def commit(run: dict) -> str:
    return run["environment"]["commit"]


def stamp(out: Path) -> str:
    """Where the runs in a folder ran, with which commit."""
    machine = describe(threads=1)
    runs = [json.loads(path.read_text()) for path in sorted(out.glob("*/run.json"))]
    commits = sorted({str(commit(run))[:7] for run in runs})
    return (
        f"{machine['cpu']}, {machine['cores']} cores, one thread a run; torch {machine['versions']['torch']}; "
        f"commit {', '.join(commits)}; seeds 0, 1, 2 (± is the sample standard deviation); {machine['time'][:10]}."
    )


def between(marks: tuple[str, str]) -> str:
    """What stands between two marks of docs/results.md."""
    return RESULTS.read_text().split(marks[0])[1].split(marks[1])[0]


def write_between(marks: tuple[str, str], text: str) -> None:
    """Puts ``text`` between two marks of docs/results.md."""
    before, rest = RESULTS.read_text().split(marks[0])
    RESULTS.write_text(f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{rest.split(marks[1])[1]}")


def record_all(runs: list[tuple[str, int]], folders: list[Path]) -> None:
    """Writes the number of every (recipe, seed) into its recipe.

    To be called after the last run: a changed recipe file would mark the commit of those that follow as changed.
    """
    for (recipe, _), folder in zip(runs, folders):
        with suppress(RunError):  # recorded before
            record(RunFolder(folder), recipe)


def write(out: Path) -> None:
    write_between(MARKS, f"{table(out)}\n\n{stamp(out)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proof")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the recipe names to run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        folders = list(pool.map(lambda run: train(*run, args.out, args.data_dir), planned(args.only)))
    write(args.out)
    record_all(planned(args.only), folders)


if __name__ == "__main__":
    main()

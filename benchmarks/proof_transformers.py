"""Small transformers on real data: trains the recipes of proof-transformers, and writes their numbers.

The table goes to docs/results.md, the numbers also into the recipes.

    python -m benchmarks.proof_transformers --data-dir DATA [--jobs 2] [--out DIR] [--only cifar10] [--seeds 0 1 2]

With MP-Init + TrSG and with neither. Runs that are there already are kept, so the script can be stopped and started
again; the table says how many seeds it has.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.proof_claims import ROOT, SEEDS, cell, first_step, record_all, stamp, train, write_between

MARKS = ("<!-- transformer table begins -->", "<!-- transformer table ends -->")
NETWORKS = {"spikformer": "Spikformer", "spikingformer": "Spikingformer", "qkformer": "QKFormer"}
SETS = {
    "cifar10": "CIFAR-10 at 16 x 16, 10,000 images, 5 epochs, T = 2",
    "nmnist": "N-MNIST at 16 x 16, 1,000 recordings, 12 epochs, T = 4",
}
VARIANTS = {"-baseline": "neither", "": "MP-Init + TrSG"}


def planned(only: str, seeds: list[int]) -> list[tuple[str, int]]:
    """(recipe, seed) in the order they are run."""
    runs = [(f"proof-{s}-{net}{v}", seed) for seed in seeds for s in SETS for net in NETWORKS for v in VARIANTS]
    return [run for run in runs if only in run[0]]


def table(out: Path) -> str:
    """Test accuracy after the last and after the first step, per data set and network."""
    rows = []
    for name, text in SETS.items():
        rows += [f"| {text}: test accuracy (%) | {' | '.join(VARIANTS.values())} | after the first step |"]
        rows += ["|---|---|---|---|"]
        for net, label in NETWORKS.items():
            folders = [[out / f"proof-{name}-{net}{v}-seed{s}" for s in SEEDS] for v in VARIANTS]
            firsts = " / ".join(first_step(f) for f in folders)
            rows.append(f"| {label} | {' | '.join(cell(f) for f in folders)} | {firsts} |")
        rows.append("")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proof-transformers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the recipe names to run")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = planned(args.only, args.seeds)
        folders = list(pool.map(lambda run: train(*run, args.out, args.data_dir), runs))
    where = stamp(args.out).replace("seeds 0, 1, 2 (", "seeds from 0 on (")
    write_between(MARKS, f"{table(args.out)}\n{where}")
    record_all(runs, folders)


if __name__ == "__main__":
    main()

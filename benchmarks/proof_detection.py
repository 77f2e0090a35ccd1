"""Detection on real images: trains proof-bccd with and without MP-Init + TrSG, and writes its table in docs/results.md.

    python -m benchmarks.proof_detection --data-dir DATA [--jobs 1] [--out DIR] [--seeds 0 1 2] [--table]

DATA holds bccd/. Runs that are there already are kept, so the program can be stopped and started again; the table says
how many seeds it has. A run takes about a minute of CPU time with one thread. `--table` trains
nothing and writes the table of the runs that are there.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.proof_claims import ROOT, SEEDS, ended, record_all, stamp, train, write_between

MARKS = ("<!-- detection table begins -->", "<!-- detection table ends -->")
VARIANTS = {"proof-bccd-baseline": "neither", "proof-bccd": "MP-Init + TrSG"}
PICTURE = "bccd-predictions.png"
ROWS = {
    "mAP@.5 (COCO)": lambda test: test["AP50"],
    "mAP@.5:.95 (COCO)": lambda test: test["AP"],
    "red cells, AP@.5": lambda test: test["classes"]["RBC"]["AP50"],
    "white cells, AP@.5": lambda test: test["classes"]["WBC"]["AP50"],
    "platelets, AP@.5": lambda test: test["classes"]["Platelets"]["AP50"],
    "mAP@.5 as YOLO code prints it": lambda test: test["yolo_AP50"],
}


def folders(out: Path, recipe: str, seeds: list[int]) -> list[Path]:
    return [out / f"{recipe}-seed{seed}" for seed in seeds]


def cell(results: list[dict], number) -> str:
    """Mean and standard deviation over seeds."""
    values = [number(result["test"]) for result in results if result["status"] == "finished"]
    if not values:
        return "not run"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread} ({len(values)} {'seeds' if len(values) > 1 else 'seed'})"


def table(out: Path, seeds: list[int]) -> str:
    rows = [f"| BCCD, test part | {' | '.join(VARIANTS.values())} |", "|---|---|---|"]
    results = {recipe: ended(folders(out, recipe, seeds)) for recipe in VARIANTS}
    for name, number in ROWS.items():
        rows.append(f"| {name} | {' | '.join(cell(results[recipe], number) for recipe in VARIANTS)} |")
    minutes = [r["seconds"] / 60 for found in results.values() for r in found]
    took = f"{min(minutes):.0f} to {max(minutes):.0f} minutes of wall time a run, beside other work" if minutes else ""
    return "\n".join([*rows, "", took])


def copy_picture(out: Path, seeds: list[int]) -> None:
    """The last picture of predictions of the first run with both methods, into docs/."""
    found = [p for f in folders(out, "proof-bccd", seeds) for p in sorted((f / "pictures").glob("*.png"))[-1:]]
    if found:
        (ROOT / "docs" / "figures").mkdir(exist_ok=True)
        shutil.copyfile(found[0], ROOT / "docs" / "figures" / PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proof-detection")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--table", action="store_true", help="only write the table of the runs that are there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [] if args.table else [(recipe, seed) for seed in args.seeds for recipe in reversed(VARIANTS)]
    with ThreadPoolExecutor(args.jobs) as pool:
        folders = list(pool.map(lambda run: train(*run, args.out, args.data_dir), runs))
    copy_picture(args.out, args.seeds)
    where = stamp(args.out).replace("seeds 0, 1, 2 (", "seeds from 0 on (")
    write_between(MARKS, f"{table(args.out, args.seeds)}\n\n{where}")
    record_all(runs, folders)


if __name__ == "__main__":
    main()

"""Small runs on real data: trains the ``proof-*`` recipes, records their numbers, and renders docs/results.md.

    python -m benchmarks.proof claims --data-dir DATA [--jobs 2] [--out runs/proof] [--only cnn7] [--seeds 0 1 2]
    python -m benchmarks.proof transformers --data-dir DATA
    python -m benchmarks.proof detection --data-dir DATA        # DATA holds bccd
    python -m benchmarks.proof gradients --data-dir DATA        # MPD-AGL and TrSG on the embedded digits; minutes

Each run is a process with one thread (`steadyspike train`). Runs that are there already are kept, so the program can be
stopped and started again; with fewer seeds than the page has, the page keeps its means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import results_page
from benchmarks.results_page import DETECTION, GRADIENTS, METHODS, PROOF_NETWORKS, TRANSFORMER_SETS, TRANSFORMERS

from steadyspike.results.recording import record
from steadyspike.train.files.folder import RunError, RunFolder

ROOT = Path(__file__).resolve().parent.parent
PICTURE = "bccd-predictions.png"
Planned = list[tuple[str, int]]


def claims(seeds: Sequence[int]) -> Planned:
    """(recipe, seed) in the order they are run: what matters most first."""
    nets = {net: [(f"proof-cifar10-{net}{v}", s) for s in seeds for v in METHODS] for net in PROOF_NETWORKS}
    frozen = [(f"proof-cifar10-cnn7-frozen-{family}-v0.1", s) for s in seeds for family in ("as", "rs", "trsg")]
    return [*nets["cnn7"], ("proof-nmnist-cnn7", 0), *nets["resnet19"], *frozen]


def transformers(seeds: Sequence[int]) -> Planned:
    endings = ("-baseline", "")
    return [(f"proof-{data}-{net}{v}", s) for s in seeds for data in TRANSFORMER_SETS for net in TRANSFORMERS
            for v in endings]  # fmt: skip


def detection(seeds: Sequence[int]) -> Planned:
    return [(recipe, seed) for seed in seeds for recipe in reversed(DETECTION)]


def gradients(seeds: Sequence[int]) -> Planned:
    return [(recipe, seed) for seed in seeds for recipe in GRADIENTS]


PARTS = {"claims": claims, "transformers": transformers, "detection": detection, "gradients": gradients}


def train(recipe: str, seed: int, out: Path, data: Path) -> Path:
    """The folder of a run that has ended; trains it, or continues it."""
    folder = out / f"{recipe}-seed{seed}"
    if (result := outcome(folder)) is None or result["status"] == "interrupted":
        command = [Path(sys.executable).with_name("steadyspike"), "train", recipe, "--set", f"train.seed={seed}"]
        command += ["--data-dir", data, "--out", folder] + (["--resume"] if folder.exists() else [])
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{recipe}, seed {seed}: {done.stdout[-500:]}\n{done.stderr[-2000:]}")
    return folder


def outcome(folder: Path) -> dict[str, Any] | None:
    path = folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def record_all(runs: Planned, folders: Sequence[Path]) -> None:
    """Records every run.

    To be called after the last run: a changed file would mark the commit of those that follow as changed.
    """
    for (recipe, _), folder in zip(runs, folders, strict=True):
        with suppress(RunError):  # recorded before
            entry = record(RunFolder(folder), recipe)
            print(f"{recipe}, seed {entry.seed}: {entry.value} {entry.unit} {entry.note}".rstrip())


def copy_picture(folders: Sequence[Path]) -> None:
    """The last picture of predictions of the first run with both methods, into docs/."""
    pictures = [p for f in folders if f.name == "proof-bccd-seed0" for p in sorted((f / "pictures").glob("*.png"))]
    if pictures:
        shutil.copyfile(pictures[-1], ROOT / "docs" / "figures" / PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proof")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the recipe names to run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [run for run in PARTS[args.part](args.seeds) if args.only in run[0]]
    with ThreadPoolExecutor(args.jobs) as pool:
        folders = list(pool.map(lambda run: train(*run, args.out, args.data_dir), runs))
    copy_picture(folders)
    record_all(runs, folders)
    results_page.write()


if __name__ == "__main__":
    main()

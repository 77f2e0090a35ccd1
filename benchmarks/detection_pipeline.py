"""Does the data pipeline of detection keep up with a training step? One core for each.

    python -m benchmarks.detection_pipeline [--data-dir DATA] [--recipe proof-bccd] [--batches 6] [--out FILE]

Times one process that decodes, mixes and augments batches, and one that makes training steps of the recipe on them,
both with one thread, and prints their ratio. The goal is a ratio below 1: one worker process hides the pipeline.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from benchmarks.machine import describe

from steadyspike.train.build.data import batch_per_process, load_data
from steadyspike.train.build.optimizer import build_optimizer
from steadyspike.train.build.task import task_for
from steadyspike.train.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent


def measure(recipe_name: str, data_dir: Path | None, batches: int) -> dict[str, float]:
    """Seconds of CPU time per image: of the pipeline, and of a training step."""
    recipe = load_recipe(recipe_name)
    bundle = load_data(recipe.data, data_dir)
    task = task_for(recipe, bundle)
    optimizer = build_optimizer(recipe.optimizer, task.model)
    size = batch_per_process(recipe, 1)
    made, seconds = [], []
    loader = iter(bundle.train_loader(size).batches(0))
    for _ in range(batches):
        start = time.process_time()
        made.append(next(loader))
        seconds.append((time.process_time() - start) / size)
    steps = []
    for x, targets in made:
        start = time.process_time()
        task.objective(task.model, x, targets).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append((time.process_time() - start) / size)
    pipeline, step = min(seconds), min(steps)
    return {"pipeline_ms": 1e3 * pipeline, "step_ms": 1e3 * step, "ratio": pipeline / step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--recipe", default=None)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "detection_pipeline.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = args.recipe or ("proof-bccd" if args.data_dir else "detect-demo")
    actual = {"recipe": recipe, **measure(recipe, args.data_dir, args.batches), "machine": describe(threads=1)}
    print(
        f"{recipe}: pipeline {actual['pipeline_ms']:.1f} ms, training step {actual['step_ms']:.1f} ms an image: "
        f"ratio {actual['ratio']:.2f} ({'kept up' if actual['ratio'] < 1 else 'missed'})"
    )
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(actual, indent=1) + "\n")


if __name__ == "__main__":
    main()

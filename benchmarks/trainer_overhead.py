"""What the trainer adds to a plain loop's step: the same network and batches, both timed in one process, in turns.

    python benchmarks/trainer_overhead.py [RECIPE] [--rounds 5] [--data-dir DATA] [--set key=value ...]

Prints the time of a step in a plain loop and in the trainer with all it watches and writes. One thread, the process's
own CPU time, and the fastest tenth of the steps, since other programs only add. Evaluation and checkpoints come once
per epoch and are not part of a step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch

from steadyspike.train.build.data import RunData
from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.build.task import Task
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import Recipe, load_recipe
from steadyspike.train.run.training import train
from steadyspike.train.state.saving import seed_all
from steadyspike.train.state.session import Observer

WARM_UP = 3


def plain_steps(recipe: Recipe, data: RunData) -> list[float]:
    """CPU seconds of every step of one epoch in a plain loop."""
    seed_all(recipe.train.seed)
    task = Task.for_data(recipe, data.bundle)
    loader = data.bundle.train_loader(recipe.data.batch_size, seed=recipe.train.seed)
    optimizer = build_optimizer(recipe.optimizer, task.model)
    schedule = build_schedule(recipe, optimizer, len(loader))
    marks = [time.process_time()]
    task.model.train()
    for x, y in loader:
        loss = task.objective.task(task.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        marks.append(time.process_time())
    return [b - a for a, b in itertools.pairwise(marks)]


class Clock(Observer):
    """CPU time after every optimizer step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def after_step(self) -> None:
        self.marks.append(time.process_time())


def trainer_steps(recipe: Recipe, data_dir: Path | None) -> list[float]:
    """The same in the trainer, with everything it watches and writes."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, RunFolder(Path(folder)), data_dir=data_dir, display=lambda session, refused: clock)
    return [b - a for a, b in itertools.pairwise(clock.marks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(options.recipe, [*options.settings, "schedule.epochs=1"])
    data = RunData(recipe, options.data_dir)
    times: list[list[float]] = [[], []]
    for _ in range(options.rounds):
        times[0] += plain_steps(recipe, data)[WARM_UP:]
        times[1] += trainer_steps(recipe, options.data_dir)[WARM_UP:]
    plain, trainer = (1e3 * statistics.quantiles(steps, n=10)[0] for steps in times)
    print(
        f"{options.recipe}: plain {plain:.2f} ms, trainer {trainer:.2f} ms a step: {100 * (trainer / plain - 1):+.1f} %"
    )


if __name__ == "__main__":
    main()

"""What the trainer adds to a plain loop's step: the same network and batches, both timed in one process, in turns.

    python benchmarks/trainer_overhead.py [RECIPE] [--rounds 5] [--data-dir DATA] [--set key=value ...]

Prints the time of a step in a plain loop, in Lightning around that loop's step, and in the trainer with all it watches
and writes. One thread, the process's own CPU time, and the fastest tenth of the steps, since other programs only add.
Evaluation and checkpoints come once per epoch and are not part of a step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.building.lightning_data import SpikingData
from steadyspike.train.building.lightning_task import SpikingTask
from steadyspike.train.building.optimizer import build_optimizer, build_schedule
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import Recipe, load_recipe
from steadyspike.train.run.trainer import quietly
from steadyspike.train.run.training import train
from steadyspike.train.session.random_state import seed_all

WARM_UP = 3


def plain_steps(recipe: Recipe, data: SpikingData) -> list[float]:
    """CPU seconds of every step of one epoch in a plain loop."""
    seed_all(recipe.train.seed)
    task = SpikingTask.for_data(recipe, data.bundle)
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


class Bare(LightningModule):
    """The plain loop's step as Lightning wants it."""

    def __init__(self, task: SpikingTask) -> None:
        super().__init__()
        self.task = task

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return self.task.objective.task(self.task.model(x), y)

    def configure_optimizers(self) -> Any:
        recipe = self.task.recipe
        optimizer = build_optimizer(recipe.optimizer, self.task.model)
        schedule = build_schedule(recipe, optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def lightning_steps(recipe: Recipe, data: SpikingData) -> list[float]:
    """The same in Lightning's loop, with nothing of ours."""
    seed_all(recipe.train.seed)
    clock, task = Clock(), SpikingTask.for_data(recipe, data.bundle)
    with quietly():
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[clock],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Bare(task), data.bundle.train_loader(recipe.data.batch_size, seed=recipe.train.seed))
    return [b - a for a, b in itertools.pairwise(clock.marks)]


class Clock(Callback):
    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
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
    data = SpikingData(recipe, options.data_dir)
    times: list[list[float]] = [[], [], []]
    for _ in range(options.rounds):
        times[0] += plain_steps(recipe, data)[WARM_UP:]
        times[1] += lightning_steps(recipe, data)[WARM_UP:]
        times[2] += trainer_steps(recipe, options.data_dir)[WARM_UP:]
    plain, lightning, trainer = (1e3 * statistics.quantiles(steps, n=10)[0] for steps in times)
    print(
        f"{options.recipe}: plain {plain:.2f} ms, Lightning {lightning:.2f} ms ({lightning - plain:+.2f}), "
        f"trainer {trainer:.2f} ms a step ({trainer - lightning:+.2f}): {100 * (trainer / plain - 1):+.1f} %"
    )


if __name__ == "__main__":
    main()

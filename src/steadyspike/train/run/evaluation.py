"""Evaluates weights on a part of the data, at the end of a run and for `steadyspike evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from steadyspike.data import DataBundle
from steadyspike.train.build.data import load_data
from steadyspike.train.build.task import Task, task_for
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.tables import Extent, extent_problem, read_table
from steadyspike.train.files.weights import load_own_weights
from steadyspike.train.recipe import Recipe
from steadyspike.train.run.accelerator import autocast
from steadyspike.train.watch.scores import EpochScores


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Sets a model to evaluation mode; afterwards every module has its previous mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def evaluation_device(recipe: Recipe) -> torch.device:
    """The device for an evaluation by one process: that of the recipe if this machine has it, otherwise the CPU."""
    asked = recipe.train.accelerator
    if asked == "mps" and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cuda", 0) if asked in ("auto", "gpu") and torch.cuda.is_available() else torch.device("cpu")


def evaluate_part(task: Task, bundle: DataBundle, part: str, processes: int = 1) -> EpochScores:
    """Evaluates a task's current weights on one part, in this process, in the batches that ``processes`` would make."""
    return part_sums(task, bundle, part, processes).scores(everyone=False)


def part_sums(task: Task, bundle: DataBundle, part: str, processes: int = 1) -> Any:
    """Returns the sums of `evaluate_part`; afterwards the task has its earlier sums again."""
    recipe, device, kept = task.recipe, evaluation_device(task.recipe), task.eval_sums
    total = task.new_sums(bundle)
    task.model.to(device)
    batch = max(1, recipe.data.eval_batch_size // processes)
    try:
        for rank in range(processes):
            loader = bundle.eval_loader(
                part, batch, rank=rank, world_size=processes, device=device, workers=recipe.data.workers
            )
            task.eval_sums = task.new_sums(bundle)
            with evaluating(task.model), autocast(device, recipe.train.precision), torch.inference_mode():
                for samples in loader:
                    task.eval_step(samples)
            total.merge(task.eval_sums)
    finally:
        task.eval_sums = kept
    return total


HALF_A_DIGIT = 5e-5  # half of the last digit with which scores are listed; one sample of 10,000 is 0.01 %


class Evaluation(NamedTuple):
    """An evaluation, and the number with which it is compared.

    scores: the new ones
    logged: what the run recorded for this part, if anything
    same_split: whether the run's own samples were used

    processes: how many processes summed the recorded loss; with more than two, the order of the sum is not fixed
    """

    scores: EpochScores
    logged: dict[str, Any] | None
    same_split: bool
    bundle: DataBundle
    processes: int = 1

    @property
    def reproduces(self) -> bool | None:
        """Returns whether the numbers equal the logged ones exactly; None if there is nothing to compare."""
        if self.logged is None or not self.same_split:
            return None
        return self._agrees(1e-12 if self.processes > 2 else 0.0)

    @property
    def rounds(self) -> bool:
        """Returns whether all scores equal the logged ones as they are listed, and the loss differs by rounding only.

        Another processor, number of threads or version of the kernels adds numbers in another order. An accuracy counts
        samples, and does not change. An average precision depends on the order of scores: its last digits may change.
        """
        return self.reproduces is False and self._agrees(1e-5, HALF_A_DIGIT)

    def _agrees(self, relative: float, listed: float = 0.0) -> bool:
        """Returns whether the loss equals the logged one up to ``relative``, and each score up to ``listed``."""
        assert self.logged is not None
        now, then = self.scores.record(), dict(self.logged)
        loss = then.pop("loss")
        if any(not _equal(now[key], value, listed) for key, value in then.items()):
            return False
        if None in (now["loss"], loss):
            return bool(now["loss"] == loss)
        return math.isclose(now["loss"], loss, rel_tol=relative)


def _equal(now: Any, then: Any, tolerance: float) -> bool:
    """Compares two scores, or two dictionaries or lists of scores."""
    if isinstance(now, dict) and isinstance(then, dict):
        return now.keys() == then.keys() and all(_equal(now[key], then[key], tolerance) for key in now)
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(_equal, now, then, [tolerance] * len(now)))
    if isinstance(now, float) and isinstance(then, float):
        return math.isclose(now, then, rel_tol=0.0, abs_tol=tolerance)
    return bool(now == then)


def evaluate_run(
    root: Path, data_dir: Path | None = None, *, part: str = "test", split: str | None = None, download: bool = True
) -> Evaluation:
    """Evaluates the weights of a finished run on a part of its data; warns if the split differs from the run's.

    The test part is compared with result.json. The validation part is compared with the row of metrics.csv for the
    epoch of the weights.
    """
    folder = RunFolder(root)
    recipe, about, result = folder.read_recipe(), folder.read_json("run.json"), folder.read_json("result.json")
    logged = result.get(part)
    bundle = load_data(recipe.data, data_dir or folder.data_dir(), split=split, download=download)
    same = bundle.split.warn_if_other(about["data"]["split"])
    task = task_for(recipe, bundle)
    epoch = load_own_weights(folder, task.model).get("epoch")
    processes = 1
    if logged is None and epoch is not None and part != "train":  # training scores belong to earlier weights
        columns = task.columns(part)
        logged = logged_epoch(folder, part, int(epoch), columns, result["tables"]["metrics"])
        processes = about.get("processes", 1)  # the processes that made that number together
    return Evaluation(evaluate_part(task, bundle, part, processes), logged, same, bundle, processes)


def logged_epoch(
    folder: RunFolder, part: str, epoch: int, columns: list[str], extent: Extent | None = None
) -> dict[str, Any] | None:
    """Returns the row of metrics.csv about a part after an epoch; None if it was not evaluated then.

    columns: of metrics.csv for this part
    extent: length and checksum that the file must have; raises RunError if it was changed
    """
    if extent is not None and (problem := extent_problem(folder.root / "metrics.csv", extent)) is not None:
        raise RunError(f"{problem}; restore it from a copy")
    for row in read_table(folder.root / "metrics.csv"):
        if int(row["epoch"]) == epoch and all(row.get(column) for column in columns):
            values = {column.removeprefix(f"{part}_"): float(row[column]) for column in columns}
            loss = values.pop("loss")
            accuracy = [value for name, value in values.items() if name.startswith("accuracy_")]
            logged = {"accuracy": accuracy} if accuracy else values
            return {**logged, "loss": loss if math.isfinite(loss) else None}
    return None

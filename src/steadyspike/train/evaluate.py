"""Evaluation of weights on a part of the data: one function for the end of a run and for `steadyspike evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.data import DataBundle
from steadyspike.data.loader import EvalLoader
from steadyspike.nn.loss import Objective
from steadyspike.train.data import load_data
from steadyspike.train.folder import RunFolder
from steadyspike.train.measure import Scores, ScoreSums
from steadyspike.train.module import SpikingTask
from steadyspike.train.recipe import Recipe

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def evaluate_model(
    model: nn.Module, objective: Objective, loader: EvalLoader, steps: int, precision: str = "fp32"
) -> Scores:
    """Loss and accuracy after 1..steps time steps, by this process alone, in evaluation and inference mode."""
    sums, mode = ScoreSums(steps), model.training
    model.eval()
    half = _DTYPES.get(precision)
    with torch.inference_mode(), torch.autocast(loader.device.type, dtype=half, enabled=half is not None):
        for x, target in loader:
            logits = model(x)
            sums.add(objective.task(logits, target), logits, target, objective.predict)
    model.train(mode)
    return sums.scores(everyone=False)


def save_weights(path: Path, state: dict[str, Tensor], about: dict[str, Any]) -> None:
    """A model's state as safetensors, with ``about`` as JSON under the metadata key "steadyspike".

    One key only: the format does not fix the order of several, and equal weights are to be equal files. Tied parameters
    are stored once per name.
    """
    from safetensors.torch import save

    from steadyspike.train.checkpoint import write_atomically

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    content = save(tensors, {"steadyspike": json.dumps(about, sort_keys=True)})
    write_atomically(path, lambda file: file.write(content))


def load_weights(path: Path, model: nn.Module) -> None:
    """Weights of `save_weights` into ``model``; every name must match."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(path))


def evaluation_device(recipe: Recipe) -> torch.device:
    """Where one process evaluates: the GPU unless the recipe says cpu."""
    wants_gpu = recipe.train.accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", 0) if wants_gpu else torch.device("cpu")


def evaluate_part(task: SpikingTask, bundle: DataBundle, part: str) -> Scores:
    """A task's present weights on one part, in this process alone."""
    recipe, device = task.recipe, evaluation_device(task.recipe)
    loader = bundle.eval_loader(part, recipe.data.eval_batch_size, device=device, workers=recipe.data.workers)
    model = task.model.to(device)
    return evaluate_model(model, task.objective, loader, recipe.data.timesteps, recipe.train.precision)


class Evaluation(NamedTuple):
    """scores: now; logged: what the run recorded for this part, if anything; same_split: on the samples it recorded."""

    scores: Scores
    logged: dict[str, Any] | None
    same_split: bool
    bundle: DataBundle

    @property
    def reproduces(self) -> bool | None:
        """Whether the logged number came out again, exactly; None where there is nothing to compare."""
        if self.logged is None or not self.same_split:
            return None
        return self.logged == self.scores.record()


def evaluate_run(
    root: Path, data_dir: Path | None = None, *, part: str = "test", split: str | None = None, download: bool = True
) -> Evaluation:
    """The weights of a finished run on a part of its data; another split than the run's raises a loud warning."""
    folder = RunFolder(root)
    recipe = folder.read_recipe()
    bundle = load_data(recipe.data, data_dir, split=split, download=download)
    same = bundle.split.warn_if_other(folder.read_json("run.json")["data"]["split"])
    task = SpikingTask.for_data(recipe, bundle)
    load_weights(folder.weights, task.model)
    scores = evaluate_part(task, bundle, part)
    return Evaluation(scores, folder.read_json("result.json").get(part), same, bundle)

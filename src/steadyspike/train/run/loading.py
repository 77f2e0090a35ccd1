"""A finished run as objects: its network with the weights of the result, its recipe and its data."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steadyspike.data import DataBundle
from steadyspike.train.build.build_network import build_model
from steadyspike.train.build.data import load_data
from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.weights import load_own_weights
from steadyspike.train.recipe import Recipe
from steadyspike.train.recipe.kinds import kind_of


class LoadedRun:
    """``model`` with the weights of the result, in evaluation mode; ``recipe``; ``data``, loaded when first used.

    ``result`` is the content of result.json: how the run ended, and its test accuracy after each number of time steps.
    """

    def __init__(
        self, folder: Path, recipe: Recipe, model: nn.Module, result: dict[str, Any], data_dir: Path | None
    ) -> None:
        self.folder, self.recipe, self.model, self.result = folder, recipe, model, result
        self.data_dir = data_dir

    @cached_property
    def data(self) -> DataBundle:
        """Returns the run's data with its split: ``run.data.eval_loader("test", 256)``."""
        return load_data(self.recipe.data, self.data_dir)

    def __repr__(self) -> str:
        kind = kind_of(self.recipe)
        score = kind.measure.text(kind.test_scores(self.result["test"])[-1])
        name = "" if kind.measure.unit else f"{kind.measure.name} "
        return f"LoadedRun({str(self.folder)!r}: {self.recipe.model.name}, {self.result['status']}, test {name}{score})"


def load_run(folder: str | Path, data_dir: str | Path | None = None) -> LoadedRun:
    """Loads a finished run from its folder; ``data_dir`` replaces the folder of the run's data."""
    root = RunFolder(Path(folder))
    recipe, model, data_folder = _network(root, data_dir)
    result = root.read_json("result.json")
    load_own_weights(root, model)
    return LoadedRun(root.root, recipe, model.eval(), result, data_folder)


def load_checkpoint(file: str | Path, data_dir: str | Path | None = None) -> LoadedRun:
    """Loads a run with the weights of one of its checkpoints, ``RUN/checkpoints/last.ckpt``.

    The run need not have ended.
    """
    path = Path(file)
    root = RunFolder(path.resolve().parent.parent)
    if not (root.root / "recipe.toml").is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint of a run: {root.root} is not a run folder, it has no recipe.toml"
        )
    recipe, model, data_folder = _network(root, data_dir)
    checkpoint = read_checkpoint(path)
    try:
        model.load_state_dict(checkpoint["average"] or checkpoint["state_dict"])
    except RuntimeError:
        raise CheckpointError(f"{path} belongs to another network than {root.root}") from None
    result = {"status": "checkpoint", "test": {"accuracy": [float("nan")]}}
    return LoadedRun(root.root, recipe, model.eval(), result, data_folder)


def _network(root: RunFolder, data_dir: str | Path | None) -> tuple[Recipe, nn.Module, Path | None]:
    """Returns a run's recipe, its network without the trained weights, and the folder of its data."""
    recipe, about = root.read_recipe(), root.read_json("run.json")
    channels, height, width = about["data"]["shape"]
    model = build_model(recipe, num_classes=about["data"]["classes"], in_channels=channels, image_size=(height, width))
    if recipe.train.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data_folder = data_dir if data_dir is not None else about.get("data_dir")
    return recipe, model, None if data_folder is None else Path(data_folder)

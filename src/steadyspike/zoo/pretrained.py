"""A trained network ready for use: ``ss.load("cifar10-resnet19")``."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.folder import RunError, RunFolder, find_folder, packaged_names
from steadyspike.train.files.weights import read_weights
from steadyspike.zoo.description import (
    CARD,
    FILE,
    LARGEST_TEXT,
    LARGEST_WEIGHTS,
    Description,
    build,
    describe_run,
    read_description,
    recipe_of,
)

if TYPE_CHECKING:
    from steadyspike.data import DataBundle
    from steadyspike.train.recipe import Recipe


class Pretrained:
    """A trained network in evaluation mode, and what is needed to use it.

    model: takes [B, C, H, W] (event data [T, B, C, H, W]) and returns logits [T, B, classes]
    classes: names of the classes in the order of the logits; empty if there are none or their number was changed
    num_classes: the number of logits
    description: how it was made, how inputs are prepared, what was measured
    card: the same for people, in Markdown
    """

    def __init__(
        self, folder: Path, description: Description, model: nn.Module, num_classes: int, data_dir: Path | None
    ) -> None:
        self.folder, self.description, self.model, self.num_classes = folder, description, model, num_classes
        self.classes = tuple(description.classes) if num_classes == description.num_classes else ()
        self._data_dir = data_dir

    @property
    def timesteps(self) -> int:
        """T: the number of steps that the network was trained to run."""
        return self.recipe.data.timesteps

    @cached_property
    def recipe(self) -> Recipe:
        """Returns the recipe that trained the network.

        For a network that was saved without a run, the recipe that builds it.
        """
        return recipe_of(self.description)

    @property
    def card(self) -> str:
        """Returns the model card (purpose, scores, limits) in Markdown; "" if there is none."""
        path = self.folder / CARD
        if not path.is_file() or path.stat().st_size > LARGEST_TEXT:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")

    @cached_property
    def data(self) -> DataBundle:
        """Returns the data that the network was trained on, with the split: ``net.data.eval_loader("test", 256)``.

        Raises RunError if the network was saved without a run, or trained on a data set of the user's own code.
        """
        from steadyspike.train.build.data import load_data

        if "name" not in self.description.recipe.get("data", {}):
            raise RunError(f"{self.folder} does not record the data set of the network: use ss.data.load")
        return load_data(self.recipe.data, self._data_dir)

    def preprocess(self, file: str | Path, resize: bool = True) -> Tensor:
        """Reads an image file as [1, C, H, W], or an event recording as [T, 1, C, H, W], as the network takes it."""
        from steadyspike.data.input_files import read_input

        return read_input(Path(file), self.description.facts, resize)

    @torch.no_grad()
    def predict(self, file: str | Path) -> list[tuple[str, float]]:
        """Returns names of the classes and their probabilities for an image or event file, the most likely first."""
        from steadyspike.train.recipe.kinds import kind_of

        if not (kind := kind_of(self.recipe)).classifies:
            raise RunError(f"this network finds {kind.finds}: use `steadyspike predict`")
        chances = self.model(self.preprocess(file)).mean(0)[0].softmax(-1)
        share, order = chances.sort(descending=True)
        names = self.classes or tuple(str(number) for number in range(len(chances)))
        return [(names[i], p) for i, p in zip(order.tolist(), share.tolist())]

    def __repr__(self) -> str:
        summary = f"{self.recipe.model.name}, {self.num_classes} classes, T = {self.timesteps}"
        return f"Pretrained({self.folder.name!r}: {summary})"


def names() -> list[str]:
    """Returns the names of the networks that are packaged with the library."""
    return packaged_names()


def load(
    source: str | Path, *, num_classes: int | None = None, data_dir: str | Path | None = None, sha256: str | None = None
) -> Pretrained:
    """Loads a network: a name of the zoo, a folder of `save_pretrained` or of a finished run, or ``hf://owner/name``.

        net = ss.load("digits-cnn7")
        logits = net.model(images)              # [T, B, classes]
        net.predict("seven.png")                # [("7", 0.93), ...]

    num_classes: a new last layer for this many classes, to train on other data; the rest keeps its weights
    data_dir: the folder in which ``net.data`` looks for the data set
    sha256: the expected checksum of the weights; downloads from a hub need it, or a revision
        (``hf://owner/name@COMMIT``)
    A folder is preferred to a network of the zoo with the same name. Nothing that a folder or a download contains is
    executed.
    """
    if str(source).startswith("hf://"):
        from steadyspike.zoo.hub import download

        folder = download(str(source), sha256)
    else:
        folder = find_folder(source)
    data = None if data_dir is None else Path(data_dir)
    if not (folder / FILE).is_file() and (folder / "recipe.toml").is_file():
        return _of_run(folder, num_classes, data, sha256)
    description = read_description(folder)
    return _made(folder, description, _weights(folder, description.weights_sha256, sha256), num_classes, data)


def _of_run(folder: Path, num_classes: int | None, data_dir: Path | None, sha256: str | None) -> Pretrained:
    from steadyspike.train.run.loading import load_run

    run = load_run(folder, data_dir)
    description = describe_run(run, file_sha256(RunFolder(folder).weights))
    if num_classes is None and sha256 is None:
        return Pretrained(folder, description, run.model, description.num_classes, run.data_dir)
    return _made(folder, description, _weights(folder, description.weights_sha256, sha256), num_classes, run.data_dir)


def _made(
    folder: Path, description: Description, state: dict[str, Tensor], num_classes: int | None, data_dir: Path | None
) -> Pretrained:
    model = build(description, state, num_classes)
    return Pretrained(folder, description, model.eval(), num_classes or description.num_classes, data_dir)


def _weights(folder: Path, described: str, expected: str | None) -> dict[str, Tensor]:
    """Reads the weights in a folder; raises RunError if they are not the described or not the requested ones."""
    path = RunFolder(folder).weights
    if not path.is_file():
        raise RunError(f"{path} is missing")
    if path.stat().st_size > LARGEST_WEIGHTS:
        raise RunError(f"{path} is larger than {LARGEST_WEIGHTS} bytes")
    sha256 = file_sha256(path)
    for checksum, what in ((described, FILE), (expected, "sha256=...")):
        if checksum is not None and sha256 != checksum.lower():
            raise RunError(
                f"{path} has the checksum {sha256}, but {what} has {checksum}: they are not the same weights"
            )
    return read_weights(path)[0]

"""The data of a recipe, as a Lightning data module."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule

from steadyspike.data import DataBundle, load
from steadyspike.data.augment import Augment
from steadyspike.data.augmentation.mix import Mixing
from steadyspike.data.augmentation.regularise import Regularise
from steadyspike.data.dataset_catalogue import FRAME_OPTIONS, entry
from steadyspike.data.errors import DataError
from steadyspike.data.frames import FrameSettings
from steadyspike.data.loader import EvalLoader, TrainLoader
from steadyspike.data.sources import ItemSource
from steadyspike.data.splits import Split
from steadyspike.detection.data.detection_set import DetectionBundle
from steadyspike.train.building.own_code import check_own_data, is_own, own_data
from steadyspike.train.recipe import Recipe, RecipeError, schema
from steadyspike.train.recipe.constructor_options import below, check_options, kinds_of, told


def first_samples(split: Split, count: int) -> Split:
    """``split`` with ``count`` training samples: the same share of every class, chosen by order of their ids."""
    if count > len(split.train):
        raise RecipeError(
            f"data.train_samples = {count} is more than the {len(split.train)} training samples there are"
        )
    labels, ids = split.population.labels[split.train], split.population.ids
    order = sorted(range(len(split.train)), key=lambda i: (labels[i], ids[int(split.train[i])]))
    place: dict[int, int] = {}
    ranked = []
    for i in order:
        label = int(labels[i])
        ranked.append((place.setdefault(label, 0), label, i))
        place[label] += 1
    chosen = np.sort(split.train[[i for _, _, i in sorted(ranked)[:count]]])
    return replace(split, name=f"{split.name}+train:{count}", train=chosen)


_ELSEWHERE = {
    "name": "data.name", "split": "data.split", "validation": "data.validation", "timesteps": "data.timesteps",
    "size": "data.size", "data_dir": "--data-dir", "cache_dir": "", "download": "",
}  # fmt: skip


def check_data(table: schema.Data) -> None:
    """Refuses options and splits that the data set does not have, without looking at its files."""
    if is_own(table.name):
        return check_own_data(table)
    name, found = entry(table.name)
    kinds = {key: kind for key, kind in kinds_of(found.load).items() if key not in ("place", "frames")}
    if found.frames is not None:
        kinds |= {key: kinds_of(FrameSettings)[key] for key in FRAME_OPTIONS}
    kinds |= {"augment": dict[str, Any] | str, "mean": list[float], "std": list[float]}
    if table.size is not None and "size" not in kinds:
        raise RecipeError(f"data.size = {table.size}: the data set '{name}' has one size")
    kinds.pop("size", None)
    check_options(table.options, kinds, "data.options", _ELSEWHERE)
    valid = [s for s in found.splits if s != "random:SEED"]
    seeded = "random:SEED" in found.splits and re.fullmatch(r"random:[0-9]+", table.split or "")
    if table.split is not None and table.split not in valid and not seeded:
        raise RecipeError(f"data.split = {table.split!r} is not valid; it must be one of {', '.join(found.splits)}")


def load_data(
    table: schema.Data, data_dir: str | Path | None = None, *, split: str | None = None, download: bool = True
) -> DataBundle:
    """[data] as a bundle; ``split`` in place of the recipe's, for evaluation elsewhere."""
    if is_own(table.name):
        return _adjusted(own_data(table, data_dir, split), table)
    check_data(table)
    options: dict[str, Any] = dict(table.options)
    if table.size is not None:
        options["size"] = table.size if isinstance(table.size, int) else tuple(table.size)
    found = entry(table.name)[1]
    steps = table.timesteps if found.frames is not None else None
    try:
        bundle = load(
            table.name,
            data_dir,
            split=split or table.split,
            validation=table.validation,
            timesteps=steps,
            download=download,
            **options,
        )
    except DataError as error:
        # If the error is not about a file, it may be about a value of the recipe.
        key = None if error.path is not None else told("data", below("options", options), str(error))
        if key is None:
            raise
        raise RecipeError(f"{key}: {error}") from None
    return _adjusted(bundle, table)


def _adjusted(bundle: DataBundle, table: schema.Data) -> DataBundle:
    """The bundle without augmentation, or with fewer training samples, where the recipe says so."""
    if not table.augment:
        if isinstance(bundle, DetectionBundle):
            bundle = replace(bundle, dataset=bundle.dataset.with_augment("none"))
        elif isinstance(bundle.dataset.source, ItemSource):
            raise DataError(f"data.augment = false cannot be: '{table.name}' augments while it decodes.")
        else:
            bundle = replace(bundle, dataset=replace(bundle.dataset, augment=Augment()))
    if table.train_samples is not None:
        bundle = replace(bundle, split=first_samples(bundle.split, table.train_samples))
    return bundle


def batch_per_process(recipe: Recipe, processes: int) -> int:
    """Samples per forward pass in one of ``processes``; RecipeError if the batch cannot be divided equally."""
    size, accumulate = recipe.data.batch_size, recipe.train.accumulate
    if size % (processes * accumulate):
        raise RecipeError(
            f"data.batch_size = {size} must be a multiple of {processes} processes x train.accumulate = {accumulate}"
        )
    return size // (processes * accumulate)


def regularise(table: schema.Augment) -> Regularise:
    """[augment] as the loader takes it."""
    mixing = Mixing(table.mixup, table.cutmix, table.mix_prob, table.mix_switch, table.mix_until)
    return Regularise(table.erase, table.erase_mode, mixing)


class SpikingData(LightningDataModule):
    """Loaders of a recipe's data for this process of a Trainer.

    ``data.batch_size`` is the batch of one optimizer step over all processes and accumulation, so that a recipe gives
    the same training on one device and on eight.
    """

    def __init__(self, recipe: Recipe, data_dir: str | Path | None = None, bundle: DataBundle | None = None) -> None:
        super().__init__()
        self.recipe, self.data_dir = recipe, data_dir
        self._bundle = bundle
        self._train: TrainLoader | None = None

    @property
    def bundle(self) -> DataBundle:
        if self._bundle is None:
            self._bundle = load_data(self.recipe.data, self.data_dir)
        return self._bundle

    def setup(self, stage: str | None = None) -> None:
        self.bundle.indices("train")

    def batch_per_process(self, world_size: int) -> int:
        """Samples of one forward in one process."""
        return batch_per_process(self.recipe, world_size)

    def train_dataloader(self) -> TrainLoader:
        if self._train is None:
            table, rank, world, device = self.recipe.data, *self._process()
            self._train = self.bundle.train_loader(
                self.batch_per_process(world),
                seed=self.recipe.train.seed,
                rank=rank,
                world_size=world,
                device=device,
                workers=table.workers,
                drop_last=table.drop_last,
                repeats=self.recipe.augment.repeats,
                regularise=regularise(self.recipe.augment),
            )
        return self._train

    def val_dataloader(self) -> EvalLoader | list[EvalLoader]:
        part = self.bundle.selection_part
        return [] if part is None else self.eval_loader(part)

    def test_dataloader(self) -> EvalLoader:
        return self.eval_loader("test")

    def eval_loader(self, part: str) -> EvalLoader:
        """Every sample of a part once over all processes."""
        rank, world, device = self._process()
        batch = max(1, self.recipe.data.eval_batch_size // world)
        return self.bundle.eval_loader(
            part, batch, rank=rank, world_size=world, device=device, workers=self.recipe.data.workers
        )

    def _process(self) -> tuple[int, int, Any]:
        trainer = self.trainer
        if trainer is None:
            return 0, 1, "cpu"
        return trainer.global_rank, trainer.world_size, trainer.strategy.root_device

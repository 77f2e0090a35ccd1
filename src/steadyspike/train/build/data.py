"""The data of a recipe, and its loaders for one process of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steadyspike.data import DataBundle, load
from steadyspike.data.augmentation.mix import Mixing
from steadyspike.data.dataset_catalogue import FRAME_OPTIONS, entry, load_options
from steadyspike.data.errors import DataError
from steadyspike.data.frames import FrameSettings
from steadyspike.data.loader import EvalLoader, TrainLoader
from steadyspike.data.regularise import Regularise
from steadyspike.data.splits import Split
from steadyspike.train.build.own_code import check_own_data, is_own, own_data
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
    position: dict[int, int] = {}
    ranked = []
    for i in order:
        label = int(labels[i])
        ranked.append((position.setdefault(label, 0), label, i))
        position[label] += 1
    chosen = np.sort(split.train[[i for _, _, i in sorted(ranked)[:count]]])
    return replace(split, name=f"{split.name}+train:{count}", train=chosen)


_ELSEWHERE = {
    "name": "data.name", "split": "data.split", "validation": "data.validation", "timesteps": "data.timesteps",
    "size": "data.size", "data_dir": "--data-dir", "cache_dir": "", "download": "",
}  # fmt: skip


def check_data(table: schema.Data) -> None:
    """Raises an error for options and splits that the data set does not have, without reading its files."""
    if is_own(table.name):
        return check_own_data(table)
    name, data_entry = entry(table.name)
    kinds = {key: kind for key, kind in kinds_of(data_entry.load).items() if key in load_options(data_entry)}
    if data_entry.frames is not None:
        kinds |= {key: kinds_of(FrameSettings)[key] for key in FRAME_OPTIONS}
    kinds |= {"augment": dict[str, Any] | str, "mean": list[float], "std": list[float]}
    if table.size is not None and "size" not in kinds:
        raise RecipeError(f"data.size = {table.size}: the data set '{name}' has one size")
    kinds.pop("size", None)
    check_options(table.options, kinds, "data.options", _ELSEWHERE)
    valid = [s for s in data_entry.splits if s != "random:SEED"]
    seeded = "random:SEED" in data_entry.splits and re.fullmatch(r"random:[0-9]+", table.split or "")
    if table.split is not None and table.split not in valid and not seeded:
        raise RecipeError(
            f"data.split = {table.split!r} is not valid; it must be one of {', '.join(data_entry.splits)}"
        )


def load_data(
    table: schema.Data, data_dir: str | Path | None = None, *, split: str | None = None, download: bool = True
) -> DataBundle:
    """Loads [data] as a bundle; ``split`` replaces the recipe's, for evaluation on another split."""
    if is_own(table.name):
        return _adjusted(own_data(table, data_dir, split), table)
    check_data(table)
    options: dict[str, Any] = dict(table.options)
    if table.size is not None:
        options["size"] = table.size if isinstance(table.size, int) else tuple(table.size)
    data_entry = entry(table.name)[1]
    steps = table.timesteps if data_entry.frames is not None else None
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
    """Returns the bundle without augmentation, or with fewer training samples, if the recipe sets this."""
    if not table.augment:
        if bundle.dataset.augments_while_decoding:
            raise DataError(f"data.augment = false is not possible: '{table.name}' augments while it decodes")
        bundle = replace(bundle, dataset=bundle.dataset.with_augment("none"))
    if table.train_samples is not None:
        bundle = replace(bundle, split=first_samples(bundle.split, table.train_samples))
    return bundle


def batch_per_process(recipe: Recipe, processes: int) -> int:
    """Returns the samples per forward pass in one of ``processes``.

    Raises RecipeError if the batch cannot be divided equally.
    """
    size, accumulate = recipe.data.batch_size, recipe.train.accumulate
    if size % (processes * accumulate):
        raise RecipeError(
            f"data.batch_size = {size} must be a multiple of {processes} processes x train.accumulate = {accumulate}"
        )
    return size // (processes * accumulate)


def regularise(table: schema.Augment) -> Regularise:
    """Returns [augment] in the form that the loader needs."""
    mixing = Mixing(table.mixup, table.cutmix, table.mix_prob, table.mix_switch, table.mix_until)
    return Regularise(table.erase, table.erase_mode, mixing)


class RunData:
    """Makes the loaders of a recipe's data for process ``rank`` of ``world_size``.

    ``data.batch_size`` is the batch of one optimizer step over all processes and accumulation, so that a recipe gives
    the same training on one device and on eight.
    """

    def __init__(
        self,
        recipe: Recipe,
        data_dir: str | Path | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.recipe, self.rank, self.world_size, self.device = recipe, rank, world_size, torch.device(device)
        self._batch = batch_per_process(recipe, world_size)
        self.bundle = load_data(recipe.data, data_dir)

    @cached_property
    def train_loader(self) -> TrainLoader:
        table = self.recipe.data
        return self.bundle.train_loader(
            self._batch,
            seed=self.recipe.train.seed,
            rank=self.rank,
            world_size=self.world_size,
            device=self.device,
            workers=table.workers,
            drop_last=table.drop_last,
            repeats=self.recipe.augment.repeats,
            regularise=regularise(self.recipe.augment),
        )

    def eval_loader(self, part: str) -> EvalLoader:
        """Yields every sample of a part once over all processes."""
        batch = max(1, self.recipe.data.eval_batch_size // self.world_size)
        return self.bundle.eval_loader(
            part, batch, rank=self.rank, world_size=self.world_size, device=self.device,
            workers=self.recipe.data.workers,
        )  # fmt: skip

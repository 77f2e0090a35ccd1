"""The sizes at which an experiment runs.

paper   the paper's own recipe
narrow  all of CIFAR-100 in a ResNet-19 of width 0.25, T = 2, 12 epochs: about two hours a run on one thread
deep    the evidence of docs/results.md: ResNet-19 on CIFAR-10 at 16 x 16, minutes a run on one thread
mini    the same configuration of neuron, norm and loss in a small network on the embedded digits: seconds a run
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from steadyspike.train.recipe import Recipe, RecipeError, load_recipe
from steadyspike.train.recipe.kinds import kind_of

ALL_SCALES = ("mini", "deep", "narrow", "paper")
# the data sets of scales whose recipes are not made from the paper's
OWN_DATA = {"deep": "CIFAR-10", "narrow": "CIFAR-100"}
EVENT_SETS = ("dvs-cifar10", "nmnist", "dvs-gesture")
# Small forms of the networks, with options that the embedded digits need.
SMALL = {
    "resnet19": "resnet19_tiny", "cnn7": "cnn7_tiny", "resnet34": "resnet34_tiny", "sew_resnet34": "sew_resnet34_tiny",
}  # fmt: skip
FAMILIES = ("spikformer_v2", "spikformer", "spikingformer", "sdt", "qkformer", "spikingresformer")
UNSPLIT = ("digits", "digits-events", "dvs-cifar10")  # they have no official split
MINI_EPOCHS = 10
MINI_STEPS = 6  # at most
DEEP_EPOCHS = 8  # epochs of a deep recipe, unless it trains longer


@dataclass(frozen=True)
class Scale:
    """Returns a scale by name.

    data: for "mini", another data set than the embedded digits, for cases of its kind (still images or events).
    """

    name: str
    data: str = ""

    @property
    def label(self) -> str:
        """Returns this scale's name as part of a folder's name; each data set has its own pages."""
        return f"{self.name}-{self.data}" if self.data else self.name

    @property
    def note(self) -> str:
        """Describes the runs of this scale, for a page that also has the paper's values; "" for "paper"."""
        if self.name == "paper":
            return ""
        small = f"{self.data} and data" if self.data else "data"
        where = {
            "narrow": "CIFAR-100 in a narrow network",
            "deep": "CIFAR-10 at 16 x 16",
            "mini": f"{small} of this library in small networks",
        }[self.name]
        return f"measured on {where} (--scale {self.name}); the paper's values are for the data sets in its tables"

    def recipe(self, paper: str, deep: str, own: bool = False) -> tuple[str, tuple[str, ...]]:
        """Returns (recipe, changes) of a case at this scale.

        own: the case is not in the paper, and "mini" starts from ``deep``
        """
        if self.name in OWN_DATA:
            if not deep:
                raise RecipeError(f"{paper} has no {self.name} form; use --scale mini or --scale paper")
            return (deep if self.name == "deep" else narrow(deep)), ()
        if self.name == "paper":
            return paper, ()
        if own:
            return deep, mini_of_deep(load_recipe(deep), self.data)
        recipe = load_recipe(paper)
        if (small := kind_of(recipe).smallest) != "":
            return small, tuple(f"neuron.{key}={json.dumps(value)}" for key, value in changed(recipe.neuron).items())
        return paper, mini(recipe, self.data)


def narrow(deep: str) -> str:
    """Returns the recipe on CIFAR-100 with the configuration of a deep recipe, such as ``cifar100-narrow-mp``."""
    return "cifar100-narrow-" + deep.removeprefix("deep-").removeprefix("resnet19-").removesuffix("-sgd")


def changed(table: BaseModel) -> dict[str, Any]:
    """Returns the keys of a recipe's table that are not at their defaults."""
    return table.model_dump(exclude_defaults=True)


def mini(recipe: Recipe, data: str = "") -> tuple[str, ...]:
    """Returns changes that make a recipe small and keep neuron, norm and loss."""
    family = next((one for one in FAMILIES if recipe.model.name.startswith(one)), None)
    # An override cannot remove a recipe's size, and the digits as images have only one size. Recipes with a size
    # therefore get events.
    events = recipe.data.name in EVENT_SETS or family is not None
    embedded = "digits-events" if events or recipe.data.size is not None else "digits"
    name = data if data and (data in EVENT_SETS) == events else embedded
    small = f"{family}_tiny" if family else SMALL.get(recipe.model.name, recipe.model.name)
    changes = [
        f"model.name='{small}'", "model.options={}" if family else "model.options.dropout=0.0",
        f"data.name='{name}'", "data.validation='none'",
        "data.batch_size=32", f"data.timesteps={min(recipe.data.timesteps, MINI_STEPS)}",
        "schedule.name='cosine'", f"schedule.epochs={MINI_EPOCHS}", "schedule.warmup=0", "schedule.cooldown=0",
        "schedule.min_lr=0.0", f"optimizer.lr={0.05 if recipe.optimizer.name == 'sgd' else 2e-3}",
        "train.accumulate=1", "train.devices=1", "train.precision='fp32'", "train.checkpointing=false",
    ]  # fmt: skip
    if family:  # ten epochs are too few for methods that make training harder
        changes += ["augment.mixup=0.0", "augment.cutmix=0.0", "augment.erase=0.0", "augment.repeats=1"]
        changes += ["train.ema=0.0", "data.options={}", "data.size=16", "data.workers=0", "optimizer.weight_decay=0.01"]
    if recipe.data.split is not None:
        changes.append(f"data.split='{'random:0' if name in UNSPLIT else 'official'}'")
    if name.startswith("cifar"):
        changes += ["data.size=16", "data.train_samples=2000"]
    return tuple(changes)


def mini_of_deep(recipe: Recipe, data: str = "") -> tuple[str, ...]:
    """Returns `mini` of a deep recipe; layers, learning rate and factor of longer training stay the same."""
    epochs = MINI_EPOCHS * max(1, recipe.schedule.epochs // DEEP_EPOCHS)
    samples = 2000 if data.startswith("cifar") else 1000
    return (
        *mini(recipe, data), "model.width=0.0625", f"data.train_samples={samples}",
        f"optimizer.lr={recipe.optimizer.lr}", f"schedule.epochs={epochs}",
    )  # fmt: skip

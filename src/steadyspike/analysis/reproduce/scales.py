"""The sizes at which an experiment runs.

paper   the paper's own recipe
deep    the evidence of docs/results.md: ResNet-19 on CIFAR-10 at 16 x 16, minutes a run on one thread
mini    the same configuration of neuron, norm and loss in a small network on the embedded digits: seconds a run
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyspike.train.recipe import Recipe, RecipeError, load_recipe

EVENT_SETS = ("dvs-cifar10", "nmnist", "dvs-gesture")
# Small forms of the networks, with options that the embedded digits need.
SMALL = {
    "resnet19": "resnet19_tiny", "cnn7": "cnn7_tiny", "resnet34": "resnet34_tiny", "sew_resnet34": "sew_resnet34_tiny",
}  # fmt: skip
MINI_EPOCHS = 10
MINI_STEPS = 6  # at most


@dataclass(frozen=True)
class Scale:
    """A size by name; ``data``: another data set for "mini" than the embedded digits."""

    name: str
    data: str = ""

    def recipe(self, paper: str, deep: str) -> tuple[str, tuple[str, ...]]:
        """(recipe, changes) of a case at this scale."""
        if self.name == "deep":
            if not deep:
                raise RecipeError(f"{paper} has no deep form; use --scale mini or --scale paper")
            return deep, ()
        if self.name == "paper":
            return paper, ()
        return paper, mini(load_recipe(paper), self.data)


def mini(recipe: Recipe, data: str = "") -> tuple[str, ...]:
    """Changes that make a recipe small, and leave neuron, norm and loss as they are."""
    events = recipe.data.name in EVENT_SETS
    name = data or ("digits-events" if events else "digits")
    small = SMALL.get(recipe.model.name, recipe.model.name)
    changes = [
        f"model.name='{small}'", "model.options.dropout=0.0", f"data.name='{name}'", "data.validation='none'",
        "data.batch_size=32", f"data.timesteps={min(recipe.data.timesteps, MINI_STEPS)}",
        "schedule.name='cosine'", f"schedule.epochs={MINI_EPOCHS}", "schedule.warmup=0", "schedule.cooldown=0",
        "schedule.min_lr=0.0", f"optimizer.lr={0.05 if recipe.optimizer.name == 'sgd' else 2e-3}",
        "train.accumulate=1", "train.devices=1", "train.precision='fp32'", "train.checkpointing=false",
    ]  # fmt: skip
    if recipe.data.split is not None:
        changes.append("data.split='random:0'")
    if name.startswith("cifar"):
        changes += ["data.size=16", "data.train_samples=2000"]
    return tuple(changes)

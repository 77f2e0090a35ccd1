"""A recipe without its data: the full network on the meta device, and one training step of a narrow one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from steadyspike.data.catalogue import entry, expected_shape
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.models import SpikingNet
from steadyspike.nn.lif import LIF
from steadyspike.train.building.lightning_data import check_data
from steadyspike.train.building.network import build_model
from steadyspike.train.building.optimizer import build_optimizer
from steadyspike.train.building.training_objective import build_objective
from steadyspike.train.recipe import Recipe, RecipeError
from steadyspike.train.recipe.arguments import below, naming

_SMALLEST_IMAGE = 16
_NARROW = 1 / 16


@dataclass(frozen=True)
class DryRun:
    """parameters: of the full network; loss: of one step of the narrow one."""

    parameters: int
    loss: float


def data_shape(recipe: Recipe) -> tuple[int, int, tuple[int, int], bool]:
    """(classes, channels, image size, still images) of the recipe's data set, without loading it."""
    table = recipe.data
    canvas = table.options.get("canvas")
    if canvas is not None and canvas < 1:
        raise RecipeError(f"data.options.canvas = {canvas} is not valid; it must be a whole number above 0")
    classes, channels, size = expected_shape(table.name, table.size, canvas)
    return classes, channels, size, entry(table.name)[1].frames is None


def dry_run(recipe: Recipe, seed: int = 0) -> DryRun:
    """Builds the recipe's network at full size without memory, then trains a narrow one for one step on noise.

    Raises RecipeError where the recipe cannot be built, and RuntimeError where the step gives a loss that is not
    finite or leaves a trainable parameter without a gradient.
    """
    classes, channels, size, static = data_shape(recipe)
    with torch.device("meta"):
        full = build_model(recipe, num_classes=classes, in_channels=channels, image_size=size)
    parameters = sum(p.numel() for p in full.parameters())
    steps = recipe.data.timesteps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, small = _narrow(recipe, classes, channels, size)
        x = torch.randn(2, channels, *small) if static else torch.randn(steps, 2, channels, *small)
        optimizer = build_optimizer(recipe.optimizer, model)
        outcome = build_objective(recipe, static=static)(model, x, torch.tensor([0, classes - 1]))
        outcome.loss.backward()
    bare = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if bare:
        raise RuntimeError(f"parameter '{bare[0]}' gets no gradient")
    loss = float(outcome.loss.detach())
    if not torch.isfinite(outcome.loss):
        raise RuntimeError(f"the first loss is {loss}")
    optimizer.step()
    return DryRun(parameters, loss)


def _narrow(recipe: Recipe, classes: int, channels: int, size: tuple[int, int]) -> tuple[SpikingNet, tuple[int, int]]:
    """A narrow network for images a quarter as wide where it can have them, and their size."""
    width = min(_NARROW, recipe.model.width or 1.0)
    height, columns = (min(n, max(_SMALLEST_IMAGE, n // 4)) for n in size)
    for image in ((height, columns), size):
        try:
            model = build_model(recipe, num_classes=classes, in_channels=channels, image_size=image, width=width)
        except RecipeError:
            if image == size:
                raise
        else:
            break
    return model, image


def check_recipe(recipe: Recipe) -> None:
    """Raises RecipeError where a name, a value or a combination cannot be built; touches no data."""
    try:
        entry(recipe.data.name)
    except ValueError as error:
        raise RecipeError(f"data.name: {error}") from None
    check_data(recipe.data)
    classes, channels, size, static = data_shape(recipe)
    with torch.device("meta"):
        model = build_model(recipe, num_classes=classes, in_channels=channels, image_size=size)
    build_objective(recipe, static=static)
    _check_loss(recipe)
    with naming("optimizer", recipe.optimizer.model_dump(exclude={"name"})):
        build_optimizer(recipe.optimizer, model)
    with naming("neuron", {"backend": recipe.neuron.backend}):
        device = "cuda" if torch.cuda.is_available() and recipe.train.accelerator != "cpu" else "cpu"
        choose_backend(recipe.neuron.backend or "auto", torch.empty(0, device=device))


def _check_loss(recipe: Recipe) -> None:
    """Some values are looked at only when a loss is computed, so one is: of a single layer that sees noise."""
    values = below("options", recipe.loss.options)
    for name, options in recipe.loss.terms.items():
        values |= below(f"terms.{name}", options)
    steps = recipe.data.timesteps
    if values:
        with torch.random.fork_rng(devices=[]), naming("loss", values):
            layer = nn.Sequential(LIF(), nn.Linear(4, 3))
            build_objective(recipe, static=False)(layer, torch.randn(steps, 2, 4), torch.tensor([0, 1]))

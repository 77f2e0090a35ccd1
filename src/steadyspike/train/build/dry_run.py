"""Tries a recipe without its data: builds the full network on the meta device, and trains a narrow one for one step."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steadyspike.data.dataset_catalogue import entry, expected_shape
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.nn.compose import refusals
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import Objective
from steadyspike.nn.neurons import NeuronSpec
from steadyspike.nn.norm import NORMS
from steadyspike.train.build.build_network import build_model, neuron_spec
from steadyspike.train.build.data import check_data, load_data
from steadyspike.train.build.optimizer import build_optimizer
from steadyspike.train.build.own_code import is_own
from steadyspike.train.build.task import build_objective, check_task
from steadyspike.train.files.loggers import check_loggers
from steadyspike.train.recipe import Recipe, RecipeError, load_recipe
from steadyspike.train.recipe.constructor_options import below, check_name, naming

_NARROW = 1 / 16


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run: parameters of the full network, loss of one step of the narrow one."""

    parameters: int
    loss: float


def data_shape(recipe: Recipe, data_dir: str | Path | None = None) -> tuple[int, int, tuple[int, int], bool]:
    """Returns (classes, channels, image size, still images) of the recipe's data set.

    Only the user's own is loaded for it.
    """
    table = recipe.data
    if is_own(table.name):
        bundle = load_data(table, data_dir)
        return bundle.num_classes, bundle.in_channels, bundle.shape, bundle.timesteps is None
    canvas = table.options.get("canvas")
    if canvas is not None and canvas < 1:
        raise RecipeError(f"data.options.canvas = {canvas} is not valid; it must be a whole number above 0")
    classes, channels, size = expected_shape(
        table.name, table.size, canvas, total=bool(table.options.get("total", False))
    )
    return classes, channels, size, entry(table.name)[1].frames is None


def dry_run(recipe: Recipe | str | Path, seed: int = 0, data_dir: str | Path | None = None) -> DryRun:
    """Builds the recipe's network at full size without memory, then trains a narrow one for one step on noise.

    recipe: may also be a name or a .toml file, as for `load_recipe`

    Raises RecipeError if the recipe cannot be built, and RuntimeError if the loss is not finite or a trainable
    parameter gets no gradient.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    classes, channels, size, static = data_shape(recipe, data_dir)
    with _without_memory(recipe):
        full = build_model(recipe, num_classes=classes, in_channels=channels, image_size=size)
    parameters = sum(p.numel() for p in full.parameters())
    steps = recipe.data.timesteps
    objective, task = build_objective(recipe, static=static), check_task(recipe)
    check_combination(recipe, neuron_spec(recipe.neuron), objective)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, small = _narrow(recipe, classes, channels, size)
        x = torch.randn(2, channels, *small) if static else torch.randn(steps, 2, channels, *small)
        optimizer = build_optimizer(recipe.optimizer, model)
        if is_own(recipe.model.name):
            task.check_model(recipe, model, x, classes)
        loss_now = task.dry_loss(recipe, model, x, classes, static)
        loss_now.backward()
    bare = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if bare:
        raise RuntimeError(f"parameter '{bare[0]}' gets no gradient")
    loss = float(loss_now.detach())
    if not math.isfinite(loss):
        raise RuntimeError(f"the first loss is {loss}")
    optimizer.step()
    return DryRun(parameters, loss)


def _without_memory(recipe: Recipe) -> AbstractContextManager[Any]:
    """Builds networks on the meta device, except the user's own, which may compute while it is built."""
    return nullcontext() if is_own(recipe.model.name) else torch.device("meta")


def _narrow(recipe: Recipe, classes: int, channels: int, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """Builds a narrow network for images a quarter as wide if possible, or the user's own; returns their size too."""
    if is_own(recipe.model.name):
        return build_model(recipe, num_classes=classes, in_channels=channels, image_size=size), size
    width = min(_NARROW, recipe.model.width or 1.0)
    least = check_task(recipe).smallest_image
    height, columns = (min(n, max(least, n // 4 // least * least)) for n in size)
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
    """Raises RecipeError if a name, a value or a combination cannot be built; reads no data.

    The shape of the user's own data is only available once it is loaded, so in this case the network is not built here.
    """
    check_loggers(recipe.train.loggers)
    own_data = is_own(recipe.data.name)
    try:
        if not own_data:
            entry(recipe.data.name)
    except ValueError as error:
        raise RecipeError(f"data.name: {error}") from None
    check_data(recipe.data)
    check_task(recipe)
    if own_data:
        model: nn.Module = nn.Linear(1, 1)
        objective = build_objective(recipe, static=True)
    else:
        classes, channels, size, static = data_shape(recipe)
        with _without_memory(recipe):
            model = build_model(recipe, num_classes=classes, in_channels=channels, image_size=size)
        objective = build_objective(recipe, static=static)
    check_name(recipe.norm.name, NORMS, "norm.name")
    check_combination(recipe, neuron_spec(recipe.neuron), objective)
    _check_loss(recipe)
    with naming("optimizer", recipe.optimizer.model_dump(exclude={"name"})):
        build_optimizer(recipe.optimizer, model)
    with naming("neuron", {"backend": recipe.neuron.backend}):
        device = "cuda" if torch.cuda.is_available() and recipe.train.accelerator in ("auto", "gpu") else "cpu"
        choose_backend(recipe.neuron.backend or "auto", torch.empty(0, device=device))


def _check_loss(recipe: Recipe) -> None:
    """Computes the loss of a single layer on noise once, because some options are only checked then."""
    values = below("options", recipe.loss.options)
    for name, options in recipe.loss.terms.items():
        values |= below(f"terms.{name}", options)
    steps = recipe.data.timesteps
    if values:
        with torch.random.fork_rng(devices=[]), naming("loss", values):
            layer = nn.Sequential(LIF(), nn.Linear(4, 3))
            build_objective(recipe, static=False)(layer, torch.randn(steps, 2, 4), torch.tensor([0, 1]))


def check_combination(recipe: Recipe, neuron: NeuronSpec, objective: Objective) -> None:
    """Raises RecipeError with the reasons why `compose` does not accept these parts."""
    reasons = refusals(recipe.norm.name, neuron, objective, recipe.data.timesteps)
    if reasons:
        terms = "".join(f", loss.terms.{name}" for name in recipe.loss.terms)
        parts = (
            f"neuron.name = {recipe.neuron.name!r}, norm.name = {recipe.norm.name!r}, loss.name = {recipe.loss.name!r}"
        )
        raise RecipeError(
            f"this combination cannot work ({parts}{terms}, data.timesteps = {recipe.data.timesteps}): "
            + "; ".join(reasons)
        )

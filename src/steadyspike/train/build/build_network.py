"""Builds the network, with its neurons, that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from steadyspike import models
from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import SURROGATES, Surrogate
from steadyspike.models import SpikingNet
from steadyspike.nn.checkpoint import checkpoint
from steadyspike.nn.initial_potential import MPInit
from steadyspike.nn.neurons import NEURONS, NeuronSpec
from steadyspike.nn.neurons.scan_options import ScanOptions
from steadyspike.nn.norm import NORMS
from steadyspike.train.build.own_code import is_own, own_model
from steadyspike.train.recipe import Recipe, RecipeError, schema
from steadyspike.train.recipe.constructor_options import below, check_name, check_options, kinds_of, naming

_MODEL_ELSEWHERE = {
    "name": "model.name", "width": "model.width", "neuron": "neuron.name", "norm": "norm.name",
    "timesteps": "data.timesteps", "image_size": "data.size", "num_classes": "data.name", "in_channels": "data.name",
    "norm_threshold": "norm.threshold", "residual_alpha": "norm.alpha",
}  # fmt: skip


def _surrogate(table: schema.Neuron) -> Surrogate:
    assert table.surrogate is not None
    kind = SURROGATES[table.surrogate]
    width = "steepness" if "steepness" in kind.__dataclass_fields__ else "width"
    given = {
        width: table.surrogate_width,
        "scale": table.surrogate_scale,
        "temperature": table.surrogate_temperature,
    }
    return kind(**{name: value for name, value in given.items() if value is not None})


def _neuron_kinds(name: str) -> dict[str, Any]:
    """Returns names and types of the options that a neuron of the catalogue takes in a recipe."""
    build = NEURONS[name].build
    kinds = kinds_of(build)
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(build).parameters.values()):
        kinds |= get_type_hints(ScanOptions)
    if name == "imp":
        kinds["tau"] = float
    kinds = {key: kind for key, kind in kinds.items() if key not in ("channels", "features")}
    return {**kinds, "imp_scope": str, "imp_range": list[float]} if "init" in kinds else kinds


def neuron_spec(table: schema.Neuron) -> NeuronSpec:
    """Returns [neuron] as a spec from which a network builds its neurons."""
    check_name(table.name, NEURONS, "neuron.name")
    kinds = _neuron_kinds(table.name)
    plain = ("threshold", "tau", "gradient", "init", "strict", "decay_input", "backend")
    options: dict[str, Any] = {key: value for key in plain if (value := getattr(table, key)) is not None}
    if table.surrogate is not None:
        options["surrogate"] = _surrogate(table)
    if table.reset is not None:
        options["reset"] = Reset(table.reset, table.detach or "none")
    if table.init_momentum is not None:
        default = inspect.signature(NEURONS[table.name].build).parameters["init"].default
        if options.get("init", default) != "mp":
            raise RecipeError("neuron.init_momentum belongs to neuron.init = 'mp'")
        options["init"] = MPInit(table.init_momentum)
    if table.learn is not None:
        options["learn"] = _learn(table)
    for key in options:
        if key not in kinds:
            raise RecipeError(f"neuron.{key}: the neuron {table.name!r} has no such option; valid: {', '.join(kinds)}")
        if key in table.options:
            raise RecipeError(f"neuron.options.{key} cannot be set together with neuron.{key}")
    check_options(table.options, kinds, "neuron.options")
    with naming("neuron", {**table.model_dump(exclude={"options", "name"}), **below("options", table.options)}):
        return NeuronSpec(table.name, {**options, **table.options}, table.channelwise)


def _learn(table: schema.Neuron) -> tuple[str, ...] | bool:
    """Returns ``learn`` in the form that the neuron accepts: names, or one flag if it has only one constant."""
    assert table.learn is not None
    parameter = inspect.signature(NEURONS[table.name].build).parameters.get("learn")
    if parameter is not None and isinstance(parameter.default, bool):
        return bool(table.learn)
    return tuple(table.learn)


def build_model(
    recipe: Recipe, *, num_classes: int, in_channels: int, image_size: tuple[int, int], width: float | None = None
) -> nn.Module:
    """Builds the recipe's network for data of this shape; ``width`` replaces the recipe's, for dry runs."""
    check_name(recipe.norm.name, NORMS, "norm.name")
    if is_own(recipe.model.name):
        shape: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
        return own_model(recipe, neuron_spec(recipe.neuron), **shape)
    check_name(recipe.model.name, models.names(), "model.name")
    kinds = _model_kinds(recipe.model.name)
    check_options(recipe.model.options, kinds, "model.options", _MODEL_ELSEWHERE)
    for key, value in recipe.model.options.items():
        if kinds[key] is int and value < 1:
            raise RecipeError(f"model.options.{key} = {value} is not valid; it must be above 0")
    neuron = neuron_spec(recipe.neuron)
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in recipe.model.options.items()}
    with naming("model", {"width": recipe.model.width, **below("options", recipe.model.options)}):
        return models.create(
            recipe.model.name,
            num_classes=num_classes,
            in_channels=in_channels,
            image_size=image_size,
            timesteps=recipe.data.timesteps,
            neuron=neuron,
            norm=recipe.norm.name,
            width=recipe.model.width if width is None else width,
            norm_threshold=recipe.norm.threshold,
            residual_alpha=recipe.norm.alpha,
            **options,
        )


def _model_kinds(name: str) -> dict[str, Any]:
    entry = models.model_registry.entry(name)
    kinds = {**kinds_of(entry.build), **kinds_of(models.Parts)}
    return {key: kinds[key] for key in entry.option_names() if key not in _MODEL_ELSEWHERE}


def _recomputed(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(x)
    return checkpoint(forward, x)


def recompute_blocks(model: SpikingNet) -> int:
    """Wraps every block of the body in place, without renaming a parameter; returns the number of blocks.

    Statistics (norms, MP-Init) are updated only once per step, because they recognise a recomputation.
    """
    blocks = list(model.body.children())
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)
    return len(blocks)

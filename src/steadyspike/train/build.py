"""From a recipe's tables to the objects they name: neuron, network, objective, optimizer, learning-rate schedule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from steadyspike import models
from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import SURROGATES, Surrogate
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.init import MPInit
from steadyspike.nn.loss import LOSSES, TERMS, Objective, Term, make_objective
from steadyspike.nn.neurons import NEURONS, NeuronSpec
from steadyspike.nn.neurons.options import ScanOptions
from steadyspike.nn.norm import NORMS
from steadyspike.train.recipe import Recipe, RecipeError, schema
from steadyspike.train.recipe.errors import unknown_key

_WARMUP_FROM = 0.01


def _known(value: str, known: Any, key: str) -> None:
    if value not in known:
        raise RecipeError(f"{key} = {value!r} is not valid; it must be one of {', '.join(known)}")


def _takes(build: Any, options: dict[str, Any], key: str) -> None:
    valid = list(inspect.signature(build).parameters)
    for name in options:
        if name not in valid:
            raise RecipeError(unknown_key(f"{key}.{name}", valid))


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


def _options_of(name: str) -> list[str]:
    """The keyword options that a neuron of the catalogue takes."""
    parameters = inspect.signature(NEURONS[name].build).parameters
    takes = [p.name for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        takes += list(ScanOptions.__annotations__)
    if name == "imp":
        takes.append("tau")
    return [t for t in takes if t not in ("channels", "features")] + ["imp_scope", "imp_range"]


def build_neuron(table: schema.Neuron) -> NeuronSpec:
    """[neuron] as a spec that a network places at each of its sites."""
    _known(table.name, NEURONS, "neuron.name")
    takes = _options_of(table.name)
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
    for key in {**options, **table.options}:
        if key not in takes:
            raise RecipeError(f"neuron.{key}: the neuron {table.name!r} has no such option; valid: {', '.join(takes)}")
    try:
        return NeuronSpec(table.name, {**options, **table.options}, table.channelwise)
    except (ValueError, TypeError) as error:
        raise RecipeError(f"neuron: {error}") from None


def _learn(table: schema.Neuron) -> tuple[str, ...] | bool:
    """``learn`` as the neuron takes it: names, or one flag where it has one constant only."""
    assert table.learn is not None
    parameter = inspect.signature(NEURONS[table.name].build).parameters.get("learn")
    if parameter is not None and isinstance(parameter.default, bool):
        return bool(table.learn)
    return tuple(table.learn)


def build_model(
    recipe: Recipe, *, num_classes: int, in_channels: int, image_size: tuple[int, int], width: float | None = None
) -> models.SpikingNet:
    """The recipe's network for data of this shape; ``width`` in place of the recipe's, for dry runs."""
    _known(recipe.model.name, models.names(), "model.name")
    _known(recipe.norm.name, NORMS, "norm.name")
    options = dict(recipe.model.options)
    for key in ("layers", "blocks"):
        if key in options:
            options[key] = tuple(options[key])
    try:
        return models.create(
            recipe.model.name,
            num_classes=num_classes,
            in_channels=in_channels,
            image_size=image_size,
            timesteps=recipe.data.timesteps,
            neuron=build_neuron(recipe.neuron),
            norm=recipe.norm.name,
            width=recipe.model.width if width is None else width,
            norm_threshold=recipe.norm.threshold,
            residual_alpha=recipe.norm.alpha,
            **options,
        )
    except RecipeError:
        raise
    except (ValueError, TypeError) as error:
        raise RecipeError(f"model: {error}") from None


def build_objective(recipe: Recipe, *, static: bool) -> Objective:
    """[loss] with its terms; ``static``: batches are still images [B, ...]."""
    _known(recipe.loss.name, LOSSES, "loss.name")
    _takes(LOSSES[recipe.loss.name], recipe.loss.options, "loss.options")
    for name, options in recipe.loss.terms.items():
        _known(name, TERMS, "loss.terms")
        _takes(TERMS[name], options, f"loss.terms.{name}")
    try:
        objective = make_objective(
            recipe.loss.name, recipe.loss.terms, batch_dim=0 if static else 1, **recipe.loss.options
        )
    except (ValueError, TypeError) as error:
        raise RecipeError(f"loss: {error}") from None
    for name, term in objective.terms.items():
        assert isinstance(term, Term)
        if term.least_steps > recipe.data.timesteps:
            raise RecipeError(f"loss.terms.{name} needs data.timesteps of at least {term.least_steps}")
        if recipe.train.checkpointing and term.records:
            raise RecipeError(
                f"loss.terms.{name} looks into layers that would be recomputed; use train.checkpointing = false "
                "(train.save_memory = true works)"
            )
    return objective


def build_optimizer(table: schema.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """[optimizer] over the model's parameter groups."""
    groups = parameter_groups(
        model, table.weight_decay, decay_neurons=table.decay_neurons, decay_norms=table.decay_norms
    )
    if table.name == "sgd":
        return torch.optim.SGD(groups, lr=table.lr, momentum=table.momentum, nesterov=table.nesterov)
    kind = torch.optim.Adam if table.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=table.lr, betas=(table.betas[0], table.betas[1]))


def lr_factor(table: schema.Schedule, lr: float, step: int, steps_per_epoch: int) -> float:
    """The factor on the learning rate at optimizer step ``step`` (from 0), in closed form."""
    epoch = step // steps_per_epoch
    if epoch < table.warmup:
        return _WARMUP_FROM + (1 - _WARMUP_FROM) * step / (table.warmup * steps_per_epoch)
    if table.name == "cosine":
        done = min(1.0, (epoch - table.warmup) / (table.epochs - table.warmup))
        low = table.min_lr / lr
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done))
    if table.name == "step":
        return table.gamma ** sum(epoch >= milestone for milestone in table.milestones)
    return 1.0


def build_schedule(
    recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """[schedule], to be stepped after every optimizer step."""
    factor: Callable[[int], float] = lambda step: lr_factor(  # noqa: E731
        recipe.schedule, recipe.optimizer.lr, step, steps_per_epoch
    )
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

"""Builds the optimizer and the learning-rate schedule that a recipe names."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from steadyspike.nn.groups import parameter_groups
from steadyspike.train.building.lamb import Lamb
from steadyspike.train.recipe import Recipe, schema

_WARMUP_FROM = 0.01


def build_optimizer(table: schema.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """[optimizer] over the model's parameter groups."""
    groups = parameter_groups(
        model, table.weight_decay, decay_neurons=table.decay_neurons, decay_norms=table.decay_norms
    )
    if table.name == "sgd":
        return torch.optim.SGD(groups, lr=table.lr, momentum=table.momentum, nesterov=table.nesterov)
    if table.name == "lamb":
        return Lamb(groups, lr=table.lr, betas=(table.betas[0], table.betas[1]))
    kind = torch.optim.Adam if table.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=table.lr, betas=(table.betas[0], table.betas[1]))


def lr_factor(table: schema.Schedule, lr: float, step: int, steps_per_epoch: int) -> float:
    """The factor on the learning rate at optimizer step ``step`` (from 0), in closed form."""
    epoch = step // steps_per_epoch
    if epoch < table.warmup:
        first = _WARMUP_FROM if table.warmup_lr is None else table.warmup_lr / lr
        return first + (1 - first) * step / (table.warmup * steps_per_epoch)
    if table.name == "cosine":
        place = step / steps_per_epoch if table.every == "step" else epoch
        start = table.warmup if table.cosine_from == "warmup" else 0
        done = min(1.0, (place - start) / (table.epochs - table.cooldown - start))
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

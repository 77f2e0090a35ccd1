"""Builds the optimizer and the learning-rate schedule that a recipe names."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.nn.groups import parameter_groups, parameter_kinds
from steadyspike.train.recipe import Recipe, schema

_WARMUP_FROM = 0.01


def build_optimizer(table: schema.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Builds [optimizer] over the model's parameter groups."""
    groups, kinds = _groups(table, model), parameter_kinds(model)
    if table.lr_neurons is not None:
        groups = _apart(groups, kinds.get("neurons", []), lr=table.lr_neurons)
    if table.name == "muon":  # orthogonalises all weights except the last one in the model, which computes the output
        groups = _apart(groups, kinds.get("weights", [])[:-1], orthogonal=True)
        return Muon(groups, lr=table.lr, momentum=table.momentum)
    if table.name == "sgd":
        return torch.optim.SGD(groups, lr=table.lr, momentum=table.momentum, nesterov=table.nesterov)
    if table.name == "lamb":
        return Lamb(groups, lr=table.lr, betas=(table.betas[0], table.betas[1]))
    kind = torch.optim.Adam if table.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=table.lr, betas=(table.betas[0], table.betas[1]))


def _groups(table: schema.Optimizer, model: nn.Module) -> list[dict[str, Any]]:
    if table.groups == "decay":
        return parameter_groups(
            model, table.weight_decay, decay_neurons=table.decay_neurons, decay_norms=table.decay_norms
        )
    decays = {"weights": True, "norms": table.decay_norms, "biases": table.decay_norms, "neurons": table.decay_neurons}
    return [
        {"params": parameters, "kind": kind, "weight_decay": table.weight_decay if decays[kind] else 0.0}
        for kind, parameters in parameter_kinds(model).items()
    ]


def _apart(groups: list[dict[str, Any]], parameters: list[nn.Parameter], **options: Any) -> list[dict[str, Any]]:
    """Returns the groups with ``parameters`` in groups of their own, which have these options."""
    chosen = set(parameters)
    parts = []
    for group in groups:
        parts.append({**group, "params": [p for p in group["params"] if p not in chosen]})
        parts.append({**group, "params": [p for p in group["params"] if p in chosen], **options})
    return [part for part in parts if part["params"]]


def lr_factor(table: schema.Schedule, lr: float, step: int, steps_per_epoch: int, kind: str = "") -> float:
    """Returns the factor on the learning rate at optimizer step ``step`` (from 0), in closed form.

    kind: of parameters
    """
    epoch = step // steps_per_epoch
    if epoch < table.warmup:
        first = table.warmup_lr if kind != "biases" or table.warmup_bias_lr is None else table.warmup_bias_lr
        low = _WARMUP_FROM if first is None else first / lr
        return low + (1 - low) * step / (table.warmup * steps_per_epoch)
    if table.name == "cosine":
        progress = step / steps_per_epoch if table.every == "step" else epoch
        start = table.warmup if table.cosine_from == "warmup" else 0
        done = min(1.0, (progress - start) / (table.epochs - table.cooldown - start))
        low = table.min_lr / lr
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done))
    if table.name == "step":
        return table.gamma ** sum(epoch >= milestone for milestone in table.milestones)
    return 1.0


def build_schedule(
    recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Builds [schedule], which is stepped after every optimizer step."""
    table, lr = recipe.schedule, recipe.optimizer.lr
    kinds = [str(group.get("kind", "")) for group in optimizer.param_groups]
    factors: list[Callable[[int], float]] = [
        partial(lr_factor, table, lr, steps_per_epoch=steps_per_epoch, kind=kind) for kind in kinds
    ]
    if table.warmup_momentum is None or table.warmup == 0:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    momentum = (table.warmup_momentum, recipe.optimizer.momentum)
    return MomentumWarmUp(optimizer, factors, momentum, table.warmup * steps_per_epoch)


class MomentumWarmUp(torch.optim.lr_scheduler.LambdaLR):
    """`LambdaLR` that also moves the momentum linearly between two values over the first ``steps`` steps."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factors: list[Callable[[int], float]],
        momentum: tuple[float, float],
        steps: int,
    ) -> None:
        self._momentum, self._steps = momentum, steps
        super().__init__(optimizer, factors)

    def get_lr(self) -> list[float | torch.Tensor]:
        done = min(1.0, self.last_epoch / self._steps)
        for group in self.optimizer.param_groups:
            group["momentum"] = self._momentum[0] + done * (self._momentum[1] - self._momentum[0])
        return super().get_lr()


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    """Returns what the closure of an optimizer step returns, which computes the gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Lamb(torch.optim.Optimizer):
    """Per parameter w: u = m / (sqrt(v) + eps) + decay * w, with Adam's corrected moments m and v of the gradient.

    W <- w - lr * |w| / |u| * u if both lengths are above 0. Parameters without decay are updated as in Adam, w - lr *
    u.

    max_gradient: the gradient of all parameters together is first scaled to at most this length; 1 as in the usual
    implementations for transformers; None: no limit
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        max_gradient: float | None = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.max_gradient = max_gradient

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _loss_of(closure)
        shorten = self._shorten()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad if shorten is None else p.grad / shorten, group)
        return loss

    def _shorten(self) -> Tensor | None:
        """Returns the number by which all gradients are divided."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.max_gradient is None or not grads:
            return None
        return (torch.nn.utils.get_total_norm(grads) / self.max_gradient).clamp_min(1.0)

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].lerp_(grad * grad, 1 - beta2)
        mean = state["exp_avg"] / (1 - beta1 ** state["step"])
        square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
        update = mean / (square.sqrt() + group["eps"])
        if group["weight_decay"]:
            update = update + group["weight_decay"] * p
            length, size = p.norm(), update.norm()
            update = update * torch.where((length > 0) & (size > 0), length / size, torch.ones_like(length))
        p.sub_(group["lr"] * update)


# Coefficients of the quintic Newton-Schulz iteration: after five steps all singular values are between 0.7 and 1.2.
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """Returns nearly U V^T of ``matrix`` = U S V^T [rows, columns]: all its singular values become about 1."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum, whose updates of weights are orthogonalised (Jordan et al., 2024).

    For a group with ``orthogonal``: a weight is a matrix [outputs, inputs], of a convolution with one column per input
    channel and tap. W <- (1 - lr * decay) W - lr * max(1, outputs / inputs)^0.5 * O, with O from the momentum's
    `orthogonalised` matrix. The other groups get plain SGD with the same learning rate.
    """

    def __init__(self, params: Any, lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _loss_of(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        orthogonal, lr, momentum = group["orthogonal"], group["lr"], group["momentum"]
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        if not orthogonal and group["weight_decay"]:
            grad = grad.add(p, alpha=group["weight_decay"])
        mean = state["momentum_buffer"].mul_(momentum).add_(grad)
        update = grad.add(mean, alpha=momentum)
        if orthogonal:
            matrix = update.reshape(len(update), -1)
            update = orthogonalised(matrix).view(p.shape) * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            p.mul_(1 - lr * group["weight_decay"])
        p.sub_(update, alpha=lr)

"""LAMB (You et al., 2020): AdamW whose steps are scaled by the length of each layer's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """Per parameter w: u = m / (sqrt(v) + eps) + decay * w, with Adam's corrected moments m and v of the gradient;
    w <- w - lr * |w| / |u| * u if both lengths are above 0. Parameters without decay move as Adam's, w - lr * u.

    max_gradient: the gradient of all parameters together is shortened to this length first; 1 as in the usual
    implementations for transformers; None: no limit.
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        shorten = self._shorten()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad if shorten is None else p.grad / shorten, group)
        return loss

    def _shorten(self) -> Tensor | None:
        """The number by which all gradients are divided."""
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

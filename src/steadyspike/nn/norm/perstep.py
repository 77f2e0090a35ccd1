"""Normalises every time step by its own batch statistics; used by the norms "bn" and "bntt"."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.statistics import Moments, batch_norm, move_running, normalise


def row(p: Tensor | None, t: int) -> Tensor | None:
    """Returns the values of step t: row t of [T, C], or the one row [C] that all steps share."""
    return p if p is None or p.ndim == 1 else p[t]


def step_norm(norm: TimeNorm, x: Tensor) -> Tensor:
    """Normalises each x[t] by its own batch statistics and updates the running statistics once per step."""
    if norm.synchronises:
        return _over_processes(norm, x)
    mean, var = norm.running()
    out = []
    for t, x_t in enumerate(x.unbind(0)):
        mean_t, var_t, weight_t, bias_t = (row(p, t) for p in (mean, var, norm.weight, norm.bias))
        y = batch_norm(
            *(x_t, (mean_t, var_t), weight_t, bias_t), training=norm.training, momentum=norm.momentum, eps=norm.eps
        )
        out.append(y)
    return torch.stack(out)


def _over_processes(norm: TimeNorm, x: Tensor) -> Tensor:
    """The same as `step_norm` in training mode, over several processes, which exchange all steps' moments at once."""
    batch = norm.batch_moments(x, [i for i in range(x.ndim) if i not in (0, 2)])
    if norm.tracks:
        for t in range(x.shape[0]):
            mean, var = row(norm.running_mean, t), row(norm.running_var, t)
            assert mean is not None and var is not None
            move_running(mean, var, Moments(batch.mean[t], batch.var[t], batch.n), norm.momentum)
    return normalise(x, batch.mean, batch.var, norm.eps, norm.weight, norm.bias)

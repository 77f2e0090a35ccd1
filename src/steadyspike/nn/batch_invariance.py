"""Checks that a sample has the same output alone as in its batch, and finds the layer that mixes samples."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn


class BatchLeak(NamedTuple):
    """A sample whose output depends on its batch: its number, the error, and the first layer that differs, if known."""

    sample: int
    error: float
    layer: str | None


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance * (1 + b.abs().max())) if b.numel() else True


def _sample_views(full: Tensor, single: Tensor, sample: int, batch: int) -> list[Tensor]:
    """Yields the parts of ``full`` that may be one sample; ``single`` is the output for this sample alone.

    One axis of ``full`` is ``batch`` times longer than in ``single``: the batch axis, or time and batch folded into one
    axis (in either order).
    """
    views = []
    for axis, (n, k) in enumerate(zip(full.shape, single.shape)):
        others = full.shape[:axis] + full.shape[axis + 1 :] == single.shape[:axis] + single.shape[axis + 1 :]
        if n == k * batch and others:
            # In a folded [T, B] the sample is the inner axis, in a folded [B, T] the outer one.
            views.append(full.unflatten(axis, (k, batch)).select(axis + 1, sample))
            views.append(full.unflatten(axis, (batch, k)).select(axis, sample))
    return views


def _recorded(model: nn.Module, x: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Returns the model's output and those of all its modules, in call order."""
    calls: list[tuple[str, Tensor]] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(partial(_record, name, calls)).remove)
        return model(x), calls


def _record(name: str, calls: list[tuple[str, Tensor]], module: nn.Module, args: object, out: object) -> None:
    if isinstance(out, Tensor):
        calls.append((name, out.detach()))


@torch.no_grad()
def first_batch_leak(
    model: nn.Module, x: Tensor, batch_dim: int, tolerance: float, samples: int = 16
) -> BatchLeak | None:
    """Compares ``model(x)`` with the model's output for single samples; returns None if they agree.

    samples: how many samples of the batch are compared, evenly spread

    The model must be in evaluation mode; its output is [T, B, ...].
    """
    batch = x.shape[batch_dim]
    out, calls = _recorded(model, x)
    chosen = sorted({round(k * (batch - 1) / (samples - 1)) for k in range(samples)})
    for i in chosen:
        alone, alone_calls = _recorded(model, x.narrow(batch_dim, i, 1))
        if _same(out[:, i : i + 1], alone, tolerance):
            continue
        error = float((out[:, i : i + 1] - alone).abs().max())
        layer = None
        # The first module, in call order, whose output for the sample differs is the one that mixes samples.
        for (name, full), (other, single) in zip(calls, alone_calls):
            views = _sample_views(full, single, i, batch) if name == other and full.ndim == single.ndim else []
            if views and not any(_same(view, single.reshape(view.shape), tolerance) for view in views):
                layer = name
                break
        return BatchLeak(i, error, layer)
    return None

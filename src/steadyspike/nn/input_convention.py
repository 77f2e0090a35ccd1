"""Finds out whether a model takes [T, B, ...] or [B, ...], by trying both; all functions that run a model use it.

A model that takes frames has time on axis 0 of its input and the batch on axis 1. A model that takes a static batch
makes its own time steps, and the batch is axis 0. The model is run on one and on two entries of axis 0. Its first
neuron layer shows whether the number of time steps or the number of samples has grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap


class Sizes(NamedTuple):
    """The current [T, B, ...] of a model's first neuron layer; for a model without neurons, the model's output."""

    current: Tensor

    @property
    def steps(self) -> int:
        return self.current.shape[0]

    @property
    def batch(self) -> int:
        return self.current.shape[1]

    def more_steps(self, fewer: Sizes) -> bool:
        return self.steps == 2 * fewer.steps and self.batch == fewer.batch

    def more_samples(self, fewer: Sizes) -> bool:
        """Returns True if the batch is twice as large and the first samples did not change."""
        if self.steps != fewer.steps or self.batch != 2 * fewer.batch:
            return False
        return bool(torch.isclose(self.current[:, : fewer.batch], fewer.current, 1e-3, 1e-4, equal_nan=True).all())


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's own mode is restored at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def find_batch_dim(model: nn.Module, example: Tensor, batch_dim: int | None = None) -> int:
    """Returns the axis of the batch in ``example``: 1 for [T, B, ...], 0 for a static batch [B, ...].

    batch_dim: returned unchanged if it is 0 or 1


    Raises a ValueError if the model does not accept the example.
    """
    if batch_dim is not None:
        if batch_dim not in (0, 1) or isinstance(batch_dim, bool):
            raise ValueError(f"batch_dim is 0 for [B, ...] or 1 for [T, B, ...], got {batch_dim!r}")
        return batch_dim
    if not isinstance(example, Tensor) or example.ndim < 2 or 0 in example.shape:
        shape = list(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"an example is a tensor [T, B, ...] or [B, ...] with at least one sample, got {shape}")
    # The trial runs must not change the user's random numbers.
    with in_evaluation(model), torch.random.fork_rng(devices=[]):
        one, two = (inner_sizes(model, _entries(example, 0, count)) for count in (1, 2))
        if isinstance(one, Sizes) and isinstance(two, Sizes):
            if two.more_steps(one):
                return 1
            if two.more_samples(one):
                return 0
        # A model that is made for one number of steps fails with another number, but runs with another batch size.
        one, two = (inner_sizes(model, _entries(example, 1, count)) for count in (1, 2))
        if isinstance(one, Sizes) and isinstance(two, Sizes) and two.more_samples(one):
            return 1
        whole = inner_sizes(model, example)
    if isinstance(whole, Sizes):
        # Neither trial gave a clear answer. If the first layer's sizes equal both leading axes, axis 0 is time.
        frames = (whole.steps, whole.batch) == tuple(example.shape[:2])
        return 0 if whole.batch == example.shape[0] and not frames else 1
    raise ValueError(
        f"the model does not take an example of shape {list(example.shape)}, neither as [T, B, ...] nor as [B, ...]: "
        f"{whole}"
    )


def _entries(x: Tensor, axis: int, count: int) -> Tensor:
    """Returns the first ``count`` entries of an axis; a shorter axis is repeated."""
    index = torch.arange(count, device=x.device) % x.shape[axis]
    return x.index_select(axis, index)


def inner_sizes(model: nn.Module, x: Tensor) -> Sizes | str:
    """Returns the input of the model's first neuron layer; if the model does not run, its error in one line."""
    seen: list[Sizes] = []

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not seen:
                seen.append(Sizes(current))

        return Tap(see)

    try:
        with tapped(model, "input convention", make):
            out = model(x)
    except Exception as error:  # a model may raise any error for a wrong input
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if seen:
        return seen[0]
    if isinstance(out, Tensor) and out.ndim >= 2:
        return Sizes(out)
    return "the model has no neuron layer, and its output is not a tensor [T, B, ...]"

"""Gradient norms per layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import tensor_norms
from steadyspike.nn.neuron import Neuron, neurons


def _groups(module: nn.Module, waiting: list[nn.Parameter], found: list[list[nn.Parameter]]) -> None:
    """The parameters in registration order, in groups: each group ends with a neuron layer."""
    if isinstance(module, Neuron):
        found.append([*waiting, *module.parameters()])
        waiting.clear()
        return
    waiting += module.parameters(recurse=False)
    for child in module.children():
        _groups(child, waiting, found)


class GradientWatch:
    """Norms of gradients, per neuron layer (its own parameters and those before it) and for what follows the last."""

    def __init__(self, model: nn.Module) -> None:
        self.groups: list[str] = list(neurons(model))
        found: list[list[nn.Parameter]] = []
        rest: list[nn.Parameter] = []
        _groups(model, rest, found)
        if rest:
            self.groups.append("head")
            found.append(rest)
        self.parameters: list[nn.Parameter] = []
        self._place: list[int] = []
        seen: set[int] = set()
        for place, parameters in enumerate(found):
            for p in parameters:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append(p)
                    self._place.append(place)
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

    @torch.no_grad()
    def norms(self, *also: Tensor) -> tuple[list[float], list[float]]:
        """Norm per group now, and the values of scalars that are wanted too: one read from the device for all."""
        there = [(p.grad, place) for p, place in zip(self.parameters, self._place) if p.grad is not None]
        scalars = [*tensor_norms([grad for grad, _ in there]), *(a.detach() for a in also)]
        if len({scalar.dtype for scalar in scalars}) > 1:
            scalars = [scalar.double() for scalar in scalars]
        values: list[float] = torch.stack(scalars).tolist() if scalars else []
        squares = [0.0] * len(self.groups)
        for norm, (_, place) in zip(values, there):
            squares[place] += norm * norm
        return [math.sqrt(square) for square in squares], values[len(there) :]

    def add(self, norms: list[float]) -> None:
        self.sums = [total + norm for total, norm in zip(self.sums, norms)]
        self.steps += 1

    def means(self) -> dict[str, float]:
        return {group: total / max(self.steps, 1) for group, total in zip(self.groups, self.sums)}

    def reset(self) -> None:
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

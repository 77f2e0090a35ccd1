"""Gradient norms per layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import tensor_norms
from steadyspike.core.widest import widest
from steadyspike.nn.neuron import Neuron, neurons


def _groups(module: nn.Module, waiting: list[nn.Parameter], groups: list[list[nn.Parameter]]) -> None:
    """The parameters in registration order, in groups: each group ends with a neuron layer."""
    if isinstance(module, Neuron):
        groups.append([*waiting, *module.parameters()])
        waiting.clear()
        return
    waiting += module.parameters(recurse=False)
    for child in module.children():
        _groups(child, waiting, groups)


class GradientWatch:
    """Norms of gradients, per neuron layer (its own parameters and those before it) and for the rest."""

    def __init__(self, model: nn.Module) -> None:
        self.groups: list[str] = list(neurons(model))
        by_layer: list[list[nn.Parameter]] = []
        rest: list[nn.Parameter] = []
        _groups(model, rest, by_layer)
        if rest:
            self.groups.append("head")
            by_layer.append(rest)
        self.parameters: list[nn.Parameter] = []
        self._group_of: list[int] = []
        seen: set[int] = set()
        for index, parameters in enumerate(by_layer):
            for p in parameters:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append(p)
                    self._group_of.append(index)
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

    @torch.no_grad()
    def norms(self, *also: Tensor) -> tuple[list[float], list[float]]:
        """Norm per group now, and the values of further scalars: one read from the device for all."""
        there = [(p.grad, index) for p, index in zip(self.parameters, self._group_of) if p.grad is not None]
        scalars = [*tensor_norms([grad for grad, _ in there]), *(a.detach() for a in also)]
        if len({scalar.dtype for scalar in scalars}) > 1:
            scalars = [scalar.to(widest(scalar.device)) for scalar in scalars]
        values: list[float] = torch.stack(scalars).tolist() if scalars else []
        squares = [0.0] * len(self.groups)
        for norm, (_, index) in zip(values, there):
            squares[index] += norm * norm
        return [math.sqrt(square) for square in squares], values[len(there) :]

    def add(self, norms: list[float]) -> None:
        self.sums = [total + norm for total, norm in zip(self.sums, norms)]
        self.steps += 1

    def means(self) -> dict[str, float]:
        return {group: total / max(self.steps, 1) for group, total in zip(self.groups, self.sums)}

    def reset(self) -> None:
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

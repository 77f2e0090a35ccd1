"""Gradients of a network's weights per time step and per layer: the supplement's metrics and cosines.

All functions use the training loss in training mode and do not change the model: statistics of norms and of MP-Init,
gradients and modes are restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, per_channel
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap
from steadyspike.paper.statistics.step_gradients import (
    DEFINITIONS,
    absolute_strength,
    active_ratio,
    contributions,
    cosine_matrix,
    gradient_variation,
)

Loss = Callable[[Tensor, Tensor], Tensor]
Weighted = nn.Conv2d | nn.Linear


def mean_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of the mean over time, the paper's loss.

    logits: [T, B, K]
    target: [B]
    """
    return F.cross_entropy(logits.mean(0), target)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Sets training mode for one measurement; buffers, gradients and modes are restored at the end."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    gradients = {p: p.grad for p in model.parameters()}
    modes = {module: module.training for module in model.modules()}
    model.train()
    for p in model.parameters():
        p.grad = None
    try:
        with torch.enable_grad():
            yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        for p, gradient in gradients.items():
            p.grad = gradient
        for module, mode in modes.items():
            module.training = mode


class LayerGradients(NamedTuple):
    """AbsStr and GradCV of the weights that feed a neuron layer, and RatioAG of that layer."""

    layer: str
    absolute: float
    ratio: float
    variation: float


def weights_before(model: nn.Module) -> dict[str, tuple[str, Weighted]]:
    """Finds the convolution or linear layer registered last before each spiking layer: {neuron: (name, layer)}."""
    weights: dict[str, tuple[str, Weighted]] = {}
    last: tuple[str, Weighted] | None = None
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in name:
            last = (name, module)
        elif isinstance(module, Neuron) and module.spiking and last is not None:
            weights[name] = last
    return weights


def gradient_metrics(
    model: nn.Module, x: Tensor, target: Tensor, loss: Loss = mean_cross_entropy
) -> list[LayerGradients]:
    """Measures the metrics of every spiking layer on one batch (supplement, "How does TrSG impact training?")."""
    ratios: dict[str, float] = {}

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if layer.spiking and result.m is not None:
                m = result.m.detach()
                v = per_channel(layer.threshold.detach(), m.ndim - 1)
                argument = m - v if layer.spec.family == "as" else m / v - 1
                ratios[name] = active_ratio(layer.spec.surrogate.derivative(argument))

        return Tap(see, membrane=True)

    rows = []
    with untouched(model):
        with tapped(model, f"ratios {id(ratios)}", make):
            loss(model(x), target).backward()
        for name, (_, layer) in weights_before(model).items():
            if name in ratios:
                gradient = layer.weight.grad
                gradient = torch.zeros(1) if gradient is None else gradient
                rows.append(
                    LayerGradients(name, absolute_strength(gradient), ratios[name], gradient_variation(gradient))
                )
    return rows


def summary(rows: list[LayerGradients]) -> dict[str, float]:
    """Returns the mean over the layers of AbsStr, RatioAG and GradCV; NaN if nothing is finite."""
    columns = {
        "absolute": [row.absolute for row in rows],
        "ratio": [row.ratio for row in rows],
        "variation": [row.variation for row in rows],
    }
    return {name: sum(values) / len(values) if values else math.nan for name, values in columns.items()}


def step_cosines(model: nn.Module, weights: str, x: Tensor, target: Tensor, definition: str = "contribution") -> Tensor:
    """Returns cosines between the time steps' gradients of one convolution or linear layer, [T, T].

    weights: the layer's name
    definition: "contribution" or "step loss", see `statistics.step_gradients`

    A layer that runs once for all steps (the first, on still images) has no gradient per step.
    """
    if definition not in DEFINITIONS:
        raise ValueError(f"unknown definition {definition!r}; known: {', '.join(DEFINITIONS)}")
    layer = dict(model.named_modules()).get(weights)
    if not isinstance(layer, (nn.Conv2d, nn.Linear)):
        raise ValueError(f"{weights!r} is not a convolution or linear layer of the model")
    with untouched(model):
        rows = (_contributions if definition == "contribution" else _losses)(model, layer, x, target)
    return cosine_matrix(rows)


def _contributions(model: nn.Module, layer: Weighted, x: Tensor, target: Tensor) -> Tensor:
    seen: dict[str, Tensor] = {}

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen["x"] = inputs[0].detach()
        output.register_hook(lambda dy: seen.__setitem__("dy", dy.detach()))

    handle = layer.register_forward_hook(look)
    try:
        logits = model(x)
        mean_cross_entropy(logits, target).backward()
    finally:
        handle.remove()
    if "dy" not in seen:
        raise ValueError("no gradient reached this layer")
    steps, samples = logits.shape[0], logits.shape[1]
    if seen["x"].shape[0] != steps * samples:
        raise ValueError(
            "this layer runs once for all time steps, so it has no gradient per step: choose a later layer"
        )
    return contributions(layer, *(seen[key].unflatten(0, (steps, samples)) for key in ("x", "dy")))


def _losses(model: nn.Module, layer: Weighted, x: Tensor, target: Tensor) -> Tensor:
    logits = model(x)
    rows = [
        torch.autograd.grad(F.cross_entropy(step, target), layer.weight, retain_graph=True)[0].flatten()
        for step in logits
    ]
    return torch.stack(rows)

"""Gradients of a layer's weights by time step, and how much they agree.

There are two definitions, and they give different numbers:

"contribution": the summand g_t of step t in the layer's gradient, dL/dW = sum_t g_t, where L is the training loss. This
    is the paper's wording ("the gradients applied to a given layer at each timestep").
"step loss": the gradient of the loss of step t's output alone, as in MPS and TET.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

DEFINITIONS = ("contribution", "step loss")


def cosine_matrix(gradients: Tensor) -> Tensor:
    """Returns cosines between the rows of [T, P] -> [T, T]; NaN for a row of zeros, which has no direction."""
    g = gradients.double()
    norms = g.norm(dim=1)
    return (g @ g.T) / (norms[:, None] * norms[None, :])


def contributions(layer: nn.Module, x: Tensor, dy: Tensor) -> Tensor:
    """G_t of a convolution or linear layer from its input x and the gradient dy of its output, both [T, B, ...].

    The result is [T, P], float64; the sum over T is the gradient of ``layer.weight``.
    """
    x, dy = x.detach().double(), dy.detach().double()
    if isinstance(layer, nn.Conv2d):
        if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            raise TypeError("contributions of a convolution need padding by zeros, given as numbers")
        rows = [
            conv2d_weight(x_t, layer.weight.shape, dy_t, layer.stride, layer.padding, layer.dilation, layer.groups)
            for x_t, dy_t in zip(x, dy)
        ]
    elif isinstance(layer, nn.Linear):
        rows = [dy_t.flatten(0, -2).T @ x_t.flatten(0, -2) for x_t, dy_t in zip(x, dy)]
    else:
        raise TypeError(f"contributions are defined for Conv2d and Linear, got {type(layer).__name__}")
    return torch.stack([row.flatten() for row in rows])


def absolute_strength(gradient: Tensor) -> float:
    """Returns AbsStr = mean |g| of a layer's weights (supplement)."""
    return float(gradient.detach().double().abs().mean())


def gradient_variation(gradient: Tensor) -> float:
    """Returns GradCV = std(|g|) / mean(|g|) of a layer's weights (supplement); 0 if all gradients are 0."""
    magnitude = gradient.detach().double().abs()
    mean = float(magnitude.mean())
    return float(magnitude.std(unbiased=False)) / mean if mean > 0 else (0.0 if mean == 0 else mean)


def active_ratio(derivative: Tensor) -> float:
    """Returns RatioAG: the share of neurons and steps with a surrogate derivative above 0.

    For the rectangle this equals the supplement's mean of 1(|x| < width / 2). Arctan and sigmoid are above 0
    everywhere.
    """
    return float((derivative.detach() > 0).double().mean())

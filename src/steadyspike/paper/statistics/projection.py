"""Principal components of logits on one common basis, so that the pictures of different steps can be compared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Basis(NamedTuple):
    """mean: [K] axes: [components, K], of unit length explained: [components], share of the variance"""

    mean: Tensor
    axes: Tensor
    explained: Tensor


def principal_axes(x: Tensor, components: int = 2) -> Basis:
    """Computes the axes of largest variance of x [N, K].

    The largest loading of every axis is positive, which fixes its sign.
    """
    x = x.detach().double()
    mean = x.mean(0)
    _, s, vh = torch.linalg.svd(x - mean, full_matrices=False)
    axes = vh[:components]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    power = s.square()
    return Basis(mean, axes * torch.where(largest < 0, -1.0, 1.0), power[:components] / power.sum().clamp_min(1e-300))


def project(x: Tensor, basis: Basis) -> Tensor:
    """Returns x [..., K] in the coordinates of the basis, [..., components]."""
    return (x.detach().double() - basis.mean) @ basis.axes.T


def explained(x: Tensor, basis: Basis) -> float:
    """Returns the share of the variance of x [N, K] that the basis explains.

    The basis may be fitted on other points.
    """
    centred = x.detach().double() - x.detach().double().mean(0)
    return float((centred @ basis.axes.T).square().sum() / centred.square().sum().clamp_min(1e-300))


def separation(points: Tensor, labels: Tensor) -> float:
    """The between-class share of the variance of points [N, D]: 0 if the classes overlap, 1 if each is one point."""
    points = points.double()
    centre = points.mean(0)
    between = torch.zeros((), dtype=torch.float64)
    for label in labels.unique():
        own = points[labels == label]
        between = between + len(own) * (own.mean(0) - centre).square().sum()
    return float(between / (points - centre).square().sum().clamp_min(1e-300))

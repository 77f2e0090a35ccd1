"""The detection head: one 1x1 convolution per scale, on the mean of the currents over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steadyspike.models.parts import Shape

# (width, height) in pixels of three boxes for the map of stride 16 and three for that of stride 32, as published.
ANCHORS = (10.0, 14.0, 23.0, 27.0, 37.0, 58.0, 81.0, 82.0, 135.0, 169.0, 344.0, 319.0)
_PRIOR_SIDE = 640  # the image side for which the start of the objectness is computed


def anchor_table(anchors: Sequence[float], maps: int) -> Tensor:
    """Converts a list of widths and heights, the same number for each map, to [maps, anchors, 2]."""
    if not anchors or len(anchors) % (2 * maps) or not all(side > 0 for side in anchors):
        raise ValueError(f"anchors must be widths and heights above 0, as many for each of the {maps} maps")
    return torch.tensor([float(side) for side in anchors], device="cpu").view(maps, -1, 2)


class Detect(nn.Module):
    """Maps currents [T, B, C, H, W] of several scales to maps [B, anchors, H, W, 5 + classes], finest first.

    A cell of a map has, per anchor, position and size of a box, the logit of an object, and one logit per class; see
    `steadyspike.detection.decode`. ``anchors`` [maps, anchors, 2] are in pixels of the input. `set_strides` sets
    ``strides``; for this the network runs once on an empty input.
    """

    anchors: Tensor

    def __init__(self, shapes: Sequence[Shape], num_classes: int, anchors: Sequence[float] = ANCHORS) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("anchors", anchor_table(anchors, len(shapes)))
        per_cell = self.anchors.shape[1] * (num_classes + 5)
        self.convs = nn.ModuleList(nn.Conv2d(shape.channels, per_cell, 1) for shape in shapes)
        self.strides: tuple[int, ...] = ()

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        return [self._map(conv, x) for conv, x in zip(self.convs, features)]

    def _map(self, conv: nn.Module, x: Tensor) -> Tensor:
        raw = conv(x.mean(0))
        batch, _, height, width = raw.shape
        return raw.view(batch, self.anchors.shape[1], -1, height, width).permute(0, 1, 3, 4, 2)

    def set_strides(self, strides: Sequence[int], objects: float) -> None:
        """Sets the strides and the start of the biases.

        The start corresponds to about ``objects`` objects in an image of 640 pixels, and equal classes.

        obj += log(objects / (640 / stride)^2), cls += log(0.6 / (classes - 0.999999)), as published for 8.
        """
        self.strides = tuple(strides)
        for conv, stride in zip(self.convs, self.strides):
            bias = conv.bias
            assert isinstance(bias, nn.Parameter)
            with torch.no_grad():
                rows = bias.view(self.anchors.shape[1], -1)
                rows[:, 4] += math.log(objects / (_PRIOR_SIDE / stride) ** 2)
                rows[:, 5:] += math.log(0.6 / (self.num_classes - 0.999999))

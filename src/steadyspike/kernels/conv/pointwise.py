"""`pointwise_conv2d`: a 1x1 convolution of a channels_last image as one matrix product.

In this format the channels of a pixel are adjacent in memory, so all pixels are the rows of a matrix. On images as
small as a transformer's tokens, torch's matrix product is faster than its convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steadyspike.kernels.eager import runs_directly

_ONE, _NONE = (1, 1), (0, 0)


def pointwise_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor | None:
    """Computes ``torch.nn.functional.conv2d`` for x [N, C, H, W] and a 1x1 kernel in one group.

    Returns None if torch's convolution should run: another kernel, stride, padding, memory format or device, or a hook
    needs that operator.
    """
    channels, height, width = x.shape[1:]
    if weight.shape[2:] != _ONE or stride != _ONE or padding != _NONE or x.dtype not in (torch.float32, torch.float64):
        return None
    if x.stride() != (height * width * channels, 1, width * channels, channels) or x.device.type != "cpu":
        return None
    if torch.is_autocast_enabled("cpu") or not runs_directly(x, weight):
        return None
    return F.linear(x.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)

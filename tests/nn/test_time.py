"""`fold_time`: layers without a time dimension on all time steps at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steadyspike.nn.time import Folded


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, 1), (torch.float64, 3)])
def test_one_channels_last_image_has_the_gradients_of_a_contiguous_one(dtype: torch.dtype, kernel: int) -> None:
    """T = 1 and a batch of one: after a view, torch's weight gradient of a grouped convolution would be wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(3, 16, 3, padding=1)), nn.ReLU(), Folded(nn.Conv2d(16, 16, kernel, groups=4))
    ).to(dtype)
    x = torch.randn(1, 1, 3, 5, 5, dtype=dtype)
    gradients = []
    for order in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=order)
        gradients.append(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    for got, expected in zip(*gradients):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

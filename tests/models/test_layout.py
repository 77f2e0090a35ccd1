"""channels_last goes in once and stays to the last neuron, without a copy in between."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap
from tests.models.members import TINY, clip, images, member, one_step


def layouts(model: torch.nn.Module, x: Tensor) -> dict[str, bool]:
    """For each neuron layer on images: are input and output channels_last at every step?"""
    actual: dict[str, bool] = {}

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            # A 1x1 image, or one channel, has both layouts at once.
            if current.ndim == 5 and min(current.shape[2:]) > 1:
                steps = (current[0], current[-1], result.out[0], result.out[-1])
                actual[name] = all(s.is_contiguous(memory_format=torch.channels_last) for s in steps)

        return Tap(see)

    with tapped(model, "layout", make):
        model(x)
    return actual


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("norm", ["tdbn", "bn", "bntt", "tebn", "tab", "none"])
@pytest.mark.parametrize("static", [True, False])
def test_channels_last_reaches_every_neuron(name: str, norm: str, static: bool) -> None:
    options = {"zero_residual": False} if name == "ms_resnet_tiny" else {}
    model = member(name, norm=norm, image_size=32, **options).to(memory_format=torch.channels_last)
    size = (2, model.in_channels, 32, 32) if static else (8, model.in_channels, 32, 32)
    x = torch.randn(size).contiguous(memory_format=torch.channels_last)
    actual = layouts(model, x if static else x.unflatten(0, (4, 2)))
    assert actual and all(actual.values()), [layer for layer, kept in actual.items() if not kept]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("static", [True, False])
def test_channels_last_equals_contiguous(name: str, static: bool) -> None:
    x = (images(name) if static else clip(name)).double()
    model = member(name).double()
    one_step(model, x)
    expected = model(x)
    expected.square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model = model.to(memory_format=torch.channels_last)
    # MP-Init's mean moved in the first forward; both runs start from the same one.
    start = member(name).double()
    one_step(start, x)
    model.load_state_dict(start.state_dict())
    out = model(x)
    out.square().sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[n], rtol=1e-6, atol=1e-9, msg=n)

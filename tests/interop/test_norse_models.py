"""The convolutional networks that Norse ships (those of its MNIST and CIFAR tasks): converted, compared, trained."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss

conv = pytest.importorskip("norse.torch.models.conv", reason="Norse is not installed")
pytestmark = pytest.mark.peer


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    out = model(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("network", ["ConvNet", "ConvNet4"])
def test_norse_networks_convert_exactly_and_train(network: str) -> None:
    torch.manual_seed(0)
    original = getattr(conv, network)(feature_size=16)
    x = (torch.rand(16, 2, 1, 16, 16) < 0.5).float() * 20
    changed = ss.convert(copy.deepcopy(original), report=None)
    assert "3 of 4 neurons" in str(changed.conversion) and "LILinearCell" in str(changed.conversion)
    (out, grads), (new_out, new_grads) = gradients(original, x), gradients(changed, x)
    assert bool(out.any()) and all(bool(g.any()) for g in grads.values())
    torch.testing.assert_close(new_out, out, rtol=1e-5, atol=1e-7)
    for name, value in grads.items():
        torch.testing.assert_close(new_grads[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))
    optimizer = torch.optim.Adam(changed.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(10 * changed(x).mean(0), torch.tensor([1, 2]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]

"""Small networks whose layers fire, with unequal V and tau, as a few steps of training leave them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.models.model_registry import create, entry
from steadyspike.models.net import SpikingNet


def example_for(name: str, batch: int = 3, steps: int = 4) -> Tensor:
    """Images for networks with three channels, frames of counts for event networks."""
    e = entry(name)
    generator = torch.Generator().manual_seed(3)
    if e.in_channels == 3:
        return torch.rand(batch, 3, *e.image_size, generator=generator)
    return torch.poisson(torch.full((steps, batch, e.in_channels, *e.image_size), 0.5), generator=generator)


def settle(model: nn.Module, x: Tensor, seed: int = 1) -> nn.Module:
    """Unequal thresholds, time constants and biases, then statistics that fit the input."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith((".k", ".w")):
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
            elif p.ndim == 1:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    for module in model.modules():
        if hasattr(module, "running_var"):
            module.momentum = 1.0
    model.train()
    with torch.no_grad():
        for _ in range(12):
            model(x)
    return model.eval()


def trained(name: str, x: Tensor | None = None, **options: object) -> tuple[SpikingNet, Tensor]:
    torch.manual_seed(0)
    model = create(name, timesteps=4, **options)  # type: ignore[arg-type]
    x = example_for(name) if x is None else x
    settle(model, x)
    return model, x

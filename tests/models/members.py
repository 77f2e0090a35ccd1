"""What the tests of all registered models share: small members, inputs, counts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steadyspike import models
from steadyspike.models.model_registry import entry
from steadyspike.nn.neuron import neurons

TINY = [name for name in models.names() if name.endswith("_tiny")]
FAMILIES = sorted({entry(name).family for name in models.names(task="classification")})


def member(name: str, **options: object) -> models.SpikingNet:
    """A small model of reproducible weights, without dropout."""
    torch.manual_seed(0)
    if "dropout" in entry(name).option_names():
        options = {"dropout": 0.0, **options}
    return models.create(name, **options)  # type: ignore[arg-type]


def images(name: str, batch: int = 3) -> Tensor:
    """Static [B, C, H, W]."""
    e = entry(name)
    return torch.randn(batch, e.in_channels, *e.image_size, generator=torch.Generator().manual_seed(1))


def clip(name: str, steps: int = 3, batch: int = 3) -> Tensor:
    """Frames [T, B, C, H, W]."""
    return images(name, steps * batch).unflatten(0, (steps, batch))


def patterns(name: str) -> tuple[Tensor, Tensor]:
    """32 noisy images of four coarse patterns, and which one each shows."""
    generator, e = torch.Generator().manual_seed(2), entry(name)
    y = torch.arange(32) % 4
    coarse = torch.randn(4, e.in_channels, 4, 4, generator=generator)
    x = nn.functional.interpolate(coarse[y], size=e.image_size)
    return x + 0.3 * torch.randn(x.shape, generator=generator), y


def weights_and_neurons(model: nn.Module) -> tuple[int, int]:
    """(parameters outside the neurons, neuron layers); every LIF adds k and w."""
    actual = len(neurons(model))
    return sum(p.numel() for p in model.parameters()) - 2 * actual, actual


def one_step(model: nn.Module, x: Tensor) -> None:
    """A training step: norms that start at scale 0 get a scale."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def bfloat16() -> Iterator[None]:
    """Autocast without oneDNN: where a virtual machine reports AMX but cannot run it, oneDNN kills Python."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            yield

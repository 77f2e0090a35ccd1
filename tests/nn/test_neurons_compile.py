"""Norms and neurons inside torch.compile: outputs, gradients and statistics are those of the plain layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from steadyspike.nn.factory import Site
from steadyspike.nn.neurons import NEURONS, neuron_factory
from steadyspike.nn.norm import NORMS, make_norm

pytestmark = pytest.mark.slow
T, C = 3, 3
LAYERS = [*(("norm", n) for n in NORMS), *(("neuron", n) for n in NEURONS if not n.startswith("lif-"))]


def run(layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x)
    (out * torch.arange(out.numel()).view_as(out).sin()).sum().backward()
    return [out.detach(), x.grad]


@pytest.mark.parametrize(("kind", "name"), LAYERS, ids=[f"{k}-{n}" for k, n in LAYERS])
def test_compiled_layers_equal_plain_ones(kind: str, name: str) -> None:
    torch._dynamo.reset()
    site = Site(C, (4, 4), T)
    plain = make_norm(name, C, timesteps=T, threshold=0.5) if kind == "norm" else neuron_factory(name).at(site)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, backend="aot_eager")
    for seed in range(2):  # the second window starts from moved statistics
        x = 2 * torch.randn(T, 2, C, 4, 4, generator=torch.Generator().manual_seed(seed))
        for a, b in zip(run(plain, x), run(compiled, x)):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
    for p, q in zip(plain.parameters(), twin.parameters()):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[key], value, rtol=1e-5, atol=1e-5)

"""The end of a surrogate's window is decided as the reference decides it, to the last bit of the potential."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import DSpike, Rect, Surrogate
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from tests.kernels.built import needs_kernel

pytestmark = needs_kernel


def around(center: float, dtype: torch.dtype, steps: int = 40) -> Tensor:
    """``center`` and its neighbours, nearest first in both directions."""
    at = torch.tensor(center, dtype=dtype)
    up, down = [at], [at]
    for _ in range(steps):
        up.append(torch.nextafter(up[-1], torch.tensor(float("inf"), dtype=dtype)))
        down.append(torch.nextafter(down[-1], torch.tensor(float("-inf"), dtype=dtype)))
    return torch.stack(up + down)


def slopes(x: Tensor, v: float, spec: ScanSpec) -> tuple[Tensor, Tensor]:
    """dx of one step with M = x, by the kernel and by the reference."""
    x = x.reshape(1, 1, -1).contiguous()
    u0, leak, threshold = x.new_zeros(1), x.new_ones(1), x.new_full((1,), v)
    g = torch.ones_like(x)
    kernel = CpuBackend().backward(Scan(x, u0, threshold, leak, Call.of(spec)), OutputGradients(g))[0]
    leaf = x.clone().requires_grad_()
    (reference,) = torch.autograd.grad(reference_scan(leaf, u0, threshold, leak, spec).out, leaf, g)
    return kernel, reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("family", ["as", "rs"])
@pytest.mark.parametrize("width", [1.0, 2.0, 0.3, 1e-6, 2.0000002, 7.7, 1e4])
@pytest.mark.parametrize("kind", [Rect, DSpike])
def test_edges(kind: type[Surrogate], width: float, family: str, dtype: torch.dtype) -> None:
    """At width 2 the lower edge is at M = 0, where the quotient hardly moves: that edge lies far from V (1 - w/2)."""
    spec = ScanSpec(family, kind(width=width))  # type: ignore[call-arg]
    for v in (1.0, 0.1, 0.7361, 3.0, 1e-3, 123.4, -0.7):
        reach = width / 2 * (1 if family == "as" else abs(v))
        edges = [around(v + sign * reach, dtype) for sign in (-1, 1)]
        small = v * torch.logspace(-9, -6, 200, dtype=dtype) * torch.tensor([[1.0], [-1.0]], dtype=dtype)
        kernel, reference = slopes(torch.cat([*edges, small.flatten(), torch.zeros(1, dtype=dtype)]), v, spec)
        assert torch.equal(kernel == 0, reference == 0), (v, width)
        torch.testing.assert_close(kernel, reference)

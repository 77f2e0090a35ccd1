"""The backward of the usual layer (TrSG, a rectangle of height 1) chooses where the reference multiplies by 0 or 1."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import Rect
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from tests.kernels.built import ISAS, needs_kernel
from tests.kernels.scan_cases import TOLERANCE

pytestmark = needs_kernel
STEPS = 3


def with_neighbours(values: Tensor) -> Tensor:
    """Each value, the number before it and the number after it."""
    infinity = torch.tensor(torch.inf, dtype=values.dtype)
    return torch.cat([values, values.nextafter(infinity), values.nextafter(-infinity)])


def on_the_edges(v: float, dtype: torch.dtype) -> Tensor:
    """[T, 1, n]: potentials at V, at the window's edges, at 0, and next to them, one after the other in all orders."""
    points = with_neighbours(torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], dtype=dtype) * v)
    rows = list(itertools.product(points.tolist(), repeat=STEPS))
    return torch.tensor(rows, dtype=dtype).T[:, None].contiguous()


def reference_gradients(scan: Scan, spec: ScanSpec, g: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in (scan.x, scan.u0, scan.v, scan.a)]
    return torch.autograd.grad(reference_scan(*leaves, spec).out, leaves, g)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("v", [1.0, 0.7, 3.0, 1e-3])
def test_exact_ties_have_the_gradient_of_the_reference(isa: int, strict: bool, per_channel: bool, v: float) -> None:
    """1/tau = 1: the potential is the input, so that it can be put on V and on the window's edges exactly."""
    x = on_the_edges(v, torch.float32)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    spec = ScanSpec(strict=strict)
    width = x.shape[2] if per_channel else 1
    scan = Scan(x, torch.zeros(1), torch.full((width,), v), torch.ones(width), Call.of(spec))
    got, want = CpuBackend(isa=isa).backward(scan, OutputGradients(g)), reference_gradients(scan, spec, g)
    # The reference multiplies by V and divides by it again, which is exact for V = 1 only.
    torch.testing.assert_close(got[0], want[0], rtol=0 if v == 1 else 3e-7, atol=0)
    rtol, atol = TOLERANCE[torch.float32]
    for actual, expected in zip(got[2:], want[2:]):
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol * x.shape[2] / width)


@pytest.mark.parametrize("isa", ISAS)
def test_a_tie_counts_as_inside(isa: int) -> None:
    """At M = V the derivative is 1: the gradient passes, though U is 0 and has no sign of its own."""
    x = torch.ones(1, 1, 64)
    g = torch.full_like(x, 3.0)
    scan = Scan(x, torch.zeros(1), torch.ones(1), torch.ones(1), Call.of(ScanSpec()))
    assert torch.equal(CpuBackend(isa=isa).backward(scan, OutputGradients(g))[0], g)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_gradients_that_are_not_finite_are_not_lost(
    isa: int, dtype: torch.dtype, per_channel: bool, bad: float
) -> None:
    """One of them, at a potential inside, below or above the window, at every step; the rest is as ever."""
    for potential, t in itertools.product((-5.0, 0.2, 0.8, 1.2, 1.9), range(STEPS)):
        x = torch.randn(STEPS, 2, 320, generator=torch.Generator().manual_seed(1)).to(dtype)
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
        x[t, 1, 70], g[t, 1, 70] = potential, bad
        spec, width = ScanSpec(), 320 if per_channel else 1
        scan = Scan(x, torch.zeros(1), torch.ones(width), torch.full((width,), 0.9), Call.of(spec))
        dx = CpuBackend(isa=isa).backward(scan, OutputGradients(g))[0]
        want = reference_gradients(scan, spec, g)[0]
        rtol, atol = TOLERANCE[dtype]
        torch.testing.assert_close(dx, want, rtol=rtol, atol=atol, equal_nan=True)
        assert not dx[t, 1, 70].isfinite()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("t", [0, 3, 17, 39])
def test_long_scans_count_no_step_twice(isa: int, t: int) -> None:
    """More than 16 steps go in parts; one that is not finite sends the block back after later parts were added up."""
    x = torch.randn(40, 2, 64, generator=torch.Generator().manual_seed(7)) * 2
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(8))
    g[t, 0, 0] = torch.inf
    spec = ScanSpec()
    scan = Scan(x, torch.zeros(1), torch.ones(64), torch.full((64,), 0.5), Call.of(spec))
    got, want = CpuBackend(isa=isa).backward(scan, OutputGradients(g)), reference_gradients(scan, spec, g)
    rtol, atol = TOLERANCE[torch.float32]
    for actual, expected in zip(got[2:], want[2:]):
        assert not actual[0].isfinite()
        torch.testing.assert_close(actual[1:], expected[1:], rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, 4, 16, 21])
def test_the_three_families_agree_to_the_last_bit_at_v_1(isa: int, dtype: torch.dtype, steps: int) -> None:
    """One training serves all three where V is fixed at 1: the gradients by input and tau are the same numbers."""
    x = torch.randn(steps, 3, 1000, generator=torch.Generator().manual_seed(3)).to(dtype)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    backend, actual = CpuBackend(isa=isa), []
    for family in ("trsg", "rs", "as"):
        scan = Scan(x, torch.full((1,), 0.3), torch.ones(1), torch.full((1,), 0.4), Call.of(ScanSpec(family, Rect())))
        dx, du0, _, da = backend.backward(scan, OutputGradients(g))
        actual.append((dx, du0, da))
    for other in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], other))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [0.5, 1.0, 2.0, 3.0])
def test_every_width_has_the_gradients_of_the_reference(isa: int, width: float) -> None:
    """From width 2 on the window reaches to 0 and below, and only width 1 has height 1: then no choice is made."""
    x = torch.randn(4, 2, 500, generator=torch.Generator().manual_seed(5)) * 1.5
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(6))
    spec = ScanSpec("trsg", Rect(width, 1.0))
    scan = Scan(x, torch.full((1,), 0.3), torch.full((1,), 0.8), torch.full((1,), 0.4), Call.of(spec))
    got, want = CpuBackend(isa=isa).backward(scan, OutputGradients(g)), reference_gradients(scan, spec, g)
    rtol, atol = TOLERANCE[torch.float32]
    for actual, expected in zip(got, want):
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol * 500)

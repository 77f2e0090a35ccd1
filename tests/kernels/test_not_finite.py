"""Inputs that are infinite, NaN or near the end of the range: the C++ scan has the gradients of the reference.

What no gradient comes into is not differentiated: U[T] that is not used, the output if only the membrane is used. A
kernel that multiplies by a gradient of 0 instead makes a NaN of an infinite potential there.
"""

import itertools

import pytest
import torch
from torch import Tensor

from steadyspike.core.spec import FAMILIES, ScanSpec
from steadyspike.core.surrogate import SURROGATES
from steadyspike.kernels.scan import lif_scan
from tests.kernels.built import needs_kernel
from tests.kernels.scan_cases import RESETS, TOLERANCE

pytestmark = needs_kernel
STEPS = 4
INTO = ({"out"}, {"u"}, {"m"}, {"out", "u"}, {"out", "m"})


def columns(values: list[float]) -> Tensor:
    """[T, 1, columns]: every value at every step of a column of its own, and pairs of values that are not finite."""
    start = torch.randn(STEPS, STEPS * len(values) + 9, generator=torch.Generator().manual_seed(0))
    for i, (value, t) in enumerate(itertools.product(values, range(STEPS))):
        start[t, i] = value
    for i, (first, then) in enumerate(itertools.product((torch.inf, -torch.inf, torch.nan), repeat=2)):
        start[0, i - 9], start[2, i - 9] = first, then
    return start[:, None]


def gradients(x: Tensor, spec: ScanSpec, into: set[str], backend: str) -> dict[str, Tensor | None]:
    """By x and, per column, by U[0], V and 1/tau, from gradients into some of the results."""
    constants = [
        torch.full((x.shape[2],), c, dtype=torch.promote_types(x.dtype, torch.float32)) for c in (0.1, 0.7, 0.5)
    ]
    leaves = [t.clone().requires_grad_() for t in (x, *constants)]
    actual = lif_scan(*leaves, spec, membrane="m" in into, backend=backend)
    results = [getattr(actual, name) for name in sorted(into)]
    seeds = [torch.Generator().manual_seed(i) for i in range(len(results))]
    back = [torch.randn(r.shape, generator=seed).to(r.dtype) for r, seed in zip(results, seeds)]
    got = torch.autograd.grad(results, leaves, back, allow_unused=True, materialize_grads=True)
    return {"out": actual.out.detach(), **dict(zip(("x", "u0", "v", "a"), got))}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_reference(family: str, surrogate: str, dtype: torch.dtype) -> None:
    x = columns([torch.inf, -torch.inf, torch.nan]).to(dtype)
    rtol, atol = TOLERANCE[dtype]
    for reset, into, decay in itertools.product(RESETS, INTO, (True, False)):
        spec = ScanSpec(family, SURROGATES[surrogate](), reset, decay_input=decay)
        want, got = (gradients(x, spec, into, backend) for backend in ("reference", "cpu"))
        for name, value in want.items():
            torch.testing.assert_close(
                got[name], value, rtol=rtol, atol=atol, equal_nan=True,
                msg=lambda text, case=(reset, into, decay, name): f"{case}: {text}",
            )  # fmt: skip


def test_some_of_these_gradients_are_finite() -> None:
    """So the test above compares more than NaN with NaN: only the last step is infinite, and reset to nothing."""
    actual = gradients(columns([torch.inf]), ScanSpec(surrogate="sigmoid", reset="hard"), {"out"}, "cpu")["x"]
    assert actual is not None
    assert actual[:, 0, STEPS - 1].isfinite().all() and actual[0, 0, STEPS - 1] != 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slope_that_underflows_times_a_large_potential_is_no_gradient(family: str) -> None:
    x = columns([1e38, -1e38])[:, :, :-9]
    spec = ScanSpec(family, SURROGATES["sigmoid"](), "hard")
    want, got = (gradients(x, spec, {"out"}, backend) for backend in ("reference", "cpu"))
    torch.testing.assert_close(got["x"], want["x"], rtol=2e-5, atol=2e-6)

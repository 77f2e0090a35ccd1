"""Gradients by finite differences: with a smooth primitive in place of the step, the formulas must be its derivative.

The backward only uses the forward value of S, so replacing H by the primitive is a legitimate test; with the real step
the true derivative is 0 and no finite difference can help.
"""

import pytest
import torch

from steadyspike.core import reference_scan
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import SURROGATES, DSpike, Rect, Sigmoid


def smooth_spike(m, v, spec):
    x = m - v if spec.family == "as" else m / v - 1
    return reference_scan._Spike.apply(x, spec.surrogate.primitive(x).detach(), spec.surrogate)


@pytest.mark.parametrize("surrogate", [Sigmoid(0.7), SURROGATES["arctan"](), Sigmoid(0.5, scale=0.3)])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("family", ["as", "rs", "trsg"])
def test_gradcheck(monkeypatch, family, reset, channelwise, surrogate):
    monkeypatch.setattr(reference_scan, "spike", smooth_spike)
    spec = ScanSpec(family, surrogate, Reset(reset))
    g = torch.Generator().manual_seed(1)
    n = 2 if channelwise else 1
    x = torch.randn(3, 2, 2, dtype=torch.float64, generator=g).add_(0.5).requires_grad_()
    u0 = torch.randn(2, 2, dtype=torch.float64, generator=g).requires_grad_()
    v = (torch.rand(n, dtype=torch.float64, generator=g) + 0.5).requires_grad_()
    a = (torch.rand(n, dtype=torch.float64, generator=g) * 0.5 + 0.3).requires_grad_()

    def scan(*tensors):
        result = reference_scan.reference_scan(*tensors, spec, membrane=True)
        return result.out, result.u, result.m

    assert torch.autograd.gradcheck(scan, (x, u0, v, a))


@pytest.mark.parametrize("surrogate", [cls() for cls in SURROGATES.values()] + [Rect(0.6, 0.3), DSpike(2.0, 1.0, 5.0)])
def test_derivative_is_that_of_the_primitive(surrogate):
    x = torch.linspace(-3, 3, 4001, dtype=torch.float64)
    h = 1e-6
    numeric = (surrogate.primitive(x + h) - surrogate.primitive(x - h)) / (2 * h)
    exact = surrogate.derivative(x)
    jump = (surrogate.derivative(x + 2 * h) - surrogate.derivative(x - 2 * h)).abs() > 0.01
    torch.testing.assert_close(exact[~jump], numeric[~jump], rtol=1e-5, atol=1e-6)
    assert jump.sum() <= 4
    assert float(surrogate.primitive(torch.tensor(1e6))) == pytest.approx(surrogate.scale, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", SURROGATES)
def test_finite_on_any_argument(name, dtype):
    x = torch.cat([torch.linspace(-1e4, 1e4, 2001), torch.linspace(-2, 2, 2001)]).to(dtype)
    d = SURROGATES[name]().derivative(x)
    assert d.dtype == dtype
    assert d.isfinite().all() and (d >= 0).all() and d.max() > 0


def test_dspike_tends_to_rect():
    x = torch.linspace(-0.49, 0.49, 99, dtype=torch.float64)
    torch.testing.assert_close(DSpike(temperature=1e-3).derivative(x), Rect().derivative(x), rtol=1e-6, atol=1e-6)

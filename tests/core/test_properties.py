"""Laws of the scan that hold for any input."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import Reset, ScanSpec

FAMILY = st.sampled_from(["as", "rs", "trsg"])
KIND = st.sampled_from(["rect", "triangle", "arctan", "sigmoid", "dspike"])
RESET = st.builds(Reset, st.sampled_from(["soft", "hard"]), st.sampled_from(["none", "spike", "product"]))
SEED = st.integers(0, 2**31)


def draw(seed, steps=6, n=30):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, n, dtype=torch.float64, generator=g) * 1.5 + 0.5
    a = torch.rand(1, dtype=torch.float64, generator=g) * 0.8 + 0.1
    v = torch.rand(1, dtype=torch.float64, generator=g) + 0.3
    return x, torch.randn(n, dtype=torch.float64, generator=g) * 0.3, v, a


def grads(x, u0, v, a, spec, cotangent):
    leaves = [z.clone().requires_grad_() for z in (x, u0, v, a)]
    result = reference_scan(*leaves, spec)
    return result, torch.autograd.grad((result.out * cotangent).sum(), leaves)


@settings(max_examples=60, deadline=None)
@given(SEED, st.integers(-6, 6), RESET, FAMILY)
def test_gauge_invariance(seed, power, reset, family):
    """Input, V and U0 scaled by the same c give the same spikes; powers of two make it exact in floating point."""
    x, u0, v, a = draw(seed)
    c = 2.0**power
    spec = ScanSpec(family, reset=reset)
    out = reference_scan(x, u0, v, a, spec).out
    scaled = reference_scan(c * x, c * u0, c * v, a, spec).out
    assert torch.equal(out > 0, scaled > 0)


@settings(max_examples=60, deadline=None)
@given(SEED, RESET, KIND)
def test_trsg_is_v_times_rs(seed, reset, kind):
    """Output and every gradient of trsg are those of V * rs."""
    x, u0, v, a = draw(seed)
    cotangent = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    _, got = grads(x, u0, v, a, ScanSpec("trsg", kind, reset), cotangent)
    leaves = [z.clone().requires_grad_() for z in (x, u0, v, a)]
    product = leaves[2] * reference_scan(*leaves, ScanSpec("rs", kind, reset)).out
    expected = torch.autograd.grad((product * cotangent).sum(), leaves)
    for g, w in zip(got, expected):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(SEED, RESET, FAMILY, st.integers(1, 5))
def test_causality(seed, reset, family, cut):
    x, u0, v, a = draw(seed)
    spec = ScanSpec(family, reset=reset)
    changed = x.clone()
    changed[cut:] += 3.0
    before = reference_scan(x, u0, v, a, spec).out
    assert torch.equal(before[:cut], reference_scan(changed, u0, v, a, spec).out[:cut])


@settings(max_examples=40, deadline=None)
@given(SEED, RESET, KIND)
def test_trsg_gradient_does_not_depend_on_the_threshold(seed, reset, kind):
    """dL/dI over V in 1/8 .. 8, input and U0 in units of V: constant for trsg, 1/V for rs, another shape for as."""
    x, u0, _, a = draw(seed)
    cotangent = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    size = {}
    for family in ("as", "rs", "trsg"):
        per_v = []
        for value in (0.125, 1.0, 8.0):
            v = torch.full((1,), value, dtype=torch.float64)
            _, (gx, *_) = grads(value * x, value * u0, v, a, ScanSpec(family, kind, reset), cotangent)
            per_v.append(gx)
        size[family] = per_v
    for gx in size["trsg"]:
        torch.testing.assert_close(gx, size["trsg"][1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(size["rs"][0], 8 * size["rs"][1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(size["rs"][2], size["rs"][1] / 8, rtol=1e-9, atol=1e-12)
    if size["trsg"][1].any():
        assert not torch.allclose(size["as"][0], size["as"][2])

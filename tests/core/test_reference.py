"""The reference scan equals the NumPy transcription: outputs, states, statistics and every gradient."""

import itertools

import numpy as np
import pytest
import torch

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import SURROGATES
from tests.core import numpy_lif

WIDTHS = {"rect": 1.0, "triangle": 0.7, "arctan": 2.0, "sigmoid": 0.4, "dspike": 1.3}
SPECS = list(itertools.product(["as", "rs", "trsg"], SURROGATES, ["soft", "hard"], ["none", "spike", "product"]))


def build(family, kind, reset, detach, **options):
    field = "steepness" if kind == "arctan" else "width"
    return ScanSpec(family, SURROGATES[kind](**{field: WIDTHS[kind]}), Reset(reset, detach), **options)


def compare(spec, kind, steps, channelwise, seed=0):
    rng = np.random.default_rng(seed)
    B, C = 4, 3
    current = rng.normal(0.8, 1.5, (steps, B, C))
    V = rng.uniform(0.3, 1.7, C if channelwise else 1)
    a = rng.uniform(0.2, 0.9, C if channelwise else 1)
    U0 = rng.normal(0.2, 0.3, (B, C))
    gO, gM, gU = rng.normal(size=current.shape), rng.normal(size=current.shape), rng.normal(size=(B, C))

    x, u0, v, leak = (torch.tensor(z, requires_grad=True) for z in (current, U0, V, a))
    got = reference_scan(x, u0, v, leak, spec, membrane=True, channelwise=channelwise)
    loss = (got.out * torch.tensor(gO)).sum() + (got.u * torch.tensor(gU)).sum() + (got.m * torch.tensor(gM)).sum()
    grads = torch.autograd.grad(loss, [x, u0, v, leak])

    args = (spec.family, spec.reset.kind)
    flags = {"strict": spec.strict, "decay_input": spec.decay_input}
    out, S, M, U = numpy_lif.forward(current, U0, V, a, *args, **flags)
    expected = numpy_lif.backward(
        current, U0, V, a, *args, spec.reset.detach, kind, WIDTHS[kind], gO, gU, gM, spec.surrogate.scale, **flags
    )
    np.testing.assert_allclose(got.out.detach(), out, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.m.detach(), M, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.u.detach(), U[-1], rtol=1e-12, atol=1e-12)
    fired = S.any(0)
    sums = [np.where(fired, U[-1], 0.0), fired.astype(float)]
    for row, value in zip(got.active, sums):
        np.testing.assert_allclose(row, value.sum(0) if channelwise else [value.sum()], rtol=1e-12, atol=1e-12)
    for name, g, w in zip(("I", "U0", "V", "a"), grads, expected):
        w = w if name in ("I", "U0") or channelwise else w.sum(keepdims=True)
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10, err_msg=f"dL/d{name}")


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize(("family", "kind", "reset", "detach"), SPECS)
def test_equals_the_numpy_transcription(family, kind, reset, detach, channelwise, steps):
    compare(build(family, kind, reset, detach), kind, steps, channelwise)


@pytest.mark.parametrize("options", [{"strict": True}, {"decay_input": False}, {"strict": True, "decay_input": False}])
@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("family", ["as", "rs", "trsg"])
def test_flags_equal_the_numpy_transcription(family, reset, options):
    compare(build(family, "triangle", reset, "none", **options), "triangle", 5, True)


def test_surrogate_scale_multiplies_the_gradient():
    spec = ScanSpec("rs", SURROGATES["triangle"](width=WIDTHS["triangle"], scale=0.3))
    compare(spec, "triangle", 4, False)


@pytest.mark.parametrize(("strict", "spikes"), [(False, 1.0), (True, 0.0)])
def test_exactly_at_threshold(strict, spikes):
    spec = ScanSpec("trsg", strict=strict)
    out = reference_scan(torch.full((1, 1), 2.0), torch.zeros(1), torch.ones(1), torch.full((1,), 0.5), spec).out
    assert out.item() == spikes


def test_static_input_repeated_by_stride_zero_equals_a_copy():
    x = torch.randn(2, 3)
    args = (torch.zeros(1), torch.ones(1), torch.full((1,), 0.5), ScanSpec())
    assert torch.equal(reference_scan(x.expand(5, 2, 3), *args).out, reference_scan(x.repeat(5, 1, 1), *args).out)

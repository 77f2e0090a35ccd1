"""The scan that keeps terms: the C++ kernel's way against the reference, with every gradient; the check of terms."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import ArcTan, Sigmoid
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Call
from steadyspike.nn.memory.affine_op import affine_of, current_scan_backward_op
from steadyspike.nn.memory.current import Term, current
from steadyspike.nn.memory.current_scan import scan_terms
from steadyspike.nn.memory.sampling import is_sum
from tests.kernels.scan_cases import LAYOUTS, arrange

needs_cpp = pytest.mark.skipif(
    get_backend("cpu").why_not(torch.zeros(1)) is not None, reason="the C++ extension is not built"
)
SHAPE = (5, 2, 3, 4, 5)
SECOND = ["none", "plain", "normed", "static"]


def term(shape, layout, normed, seed, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=g, dtype=torch.float64)
    y = (1.3 * y + 0.7 if normed else (y > 0.5) * 0.9).to(dtype)
    y = arrange(y, layout)[: 1 if layout == "static" else None]
    if not normed:
        return Term(y)
    scale, shift = (torch.rand(shape[2], generator=g, dtype=torch.float64) - 0.2 for _ in range(2))
    dtype = torch.promote_types(dtype, torch.float32)
    return Term(y, scale.to(dtype), shift.to(dtype))


def terms_for(second, layout="contiguous", shape=SHAPE, dtype=torch.float64):
    first = term(shape, layout, True, 0, dtype)
    if second == "none":
        return (first,)
    if second == "static":
        other = term(shape, layout, True, 3, dtype)
        return first, Term(other.y[:1], other.scale, other.shift)
    return first, term(shape, layout, second == "normed", 4, dtype)


def run(terms, backend, spec, sizes, keep, steps=None, membrane=True, dtype=torch.float64):
    """Outputs and gradients; ``keep`` the terms, or the current as ever."""
    g = torch.Generator().manual_seed(7)
    u0, v, a = (torch.rand(sizes[k], generator=g, dtype=torch.float64).to(dtype) * 0.4 + 0.5 for k in ("u0", "v", "a"))
    x = current(terms, steps or terms[0].y.shape[0])
    leaves = [t.detach().requires_grad_() for t in (x, u0, v, a)]
    if keep:
        result = scan_terms(leaves[0], terms, *leaves[1:], spec, Call.of(spec, membrane, True, backend))
    else:
        result = lif_scan(*leaves, spec, membrane=membrane, channelwise=True, backend=backend)
    outputs = [o for o in (result.out, result.u, result.m) if o is not None]
    cotangents = [torch.randn(o.shape, generator=g, dtype=torch.float64).to(o.dtype) for o in outputs]
    return [*(o.detach() for o in outputs), result.active, *torch.autograd.grad(outputs, leaves, cotangents)]


def assert_as_ever(terms, backend, spec, sizes, tolerance=1e-10, **options):
    got = run(terms, backend, spec, sizes, True, **options)
    want = run(terms, "reference", spec, sizes, False, **options)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance * float(1 + w.abs().max()))


SCALARS = {"u0": (1,), "v": (1,), "a": (1,)}
CHANNELS = {"u0": (3,), "v": (3,), "a": (3,)}
SPECS = [
    ScanSpec(),
    ScanSpec("as", ArcTan(), Reset("hard"), strict=True),
    ScanSpec("rs", Sigmoid(0.5), Reset("soft", True), decay_input=False),
]


@needs_cpp
@pytest.mark.parametrize("sizes", [SCALARS, CHANNELS, {**SCALARS, "u0": (1, *SHAPE[2:])}], ids=["1", "C", "element"])
@pytest.mark.parametrize(
    ("layout", "second"), [pair for pair in product(LAYOUTS, SECOND) if pair not in (("static", "static"),)]
)
def test_terms_and_layouts(layout, second, sizes):
    terms = terms_for(second, layout)
    assert affine_of(terms, SHAPE[0]) is not None
    assert_as_ever(terms, "cpu", ScanSpec(), sizes, steps=SHAPE[0])


@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=needs_cpp), "reference"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.family)
@pytest.mark.parametrize("second", SECOND)
def test_specs(second, spec, backend):
    assert_as_ever(terms_for(second), backend, spec, SCALARS, membrane=False)


@needs_cpp
def test_terms_that_the_kernel_does_not_take():
    """Two layouts, or half precision: the current is written for the moment it is used."""
    first, second = terms_for("normed")
    mixed = (first, Term(arrange(second.y, "channels_last"), second.scale, second.shift))
    assert affine_of(mixed, SHAPE[0]) is None
    assert_as_ever(mixed, "cpu", ScanSpec(), SCALARS)
    half = terms_for("plain", dtype=torch.bfloat16)
    assert affine_of(half, SHAPE[0]) is None
    got, want = (run(half, "cpu", ScanSpec(), SCALARS, keep, dtype=torch.float32) for keep in (True, False))
    for g, w in zip(got, want):
        assert torch.equal(g, w)


@needs_cpp
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (70, 2, 3, 5), (2, 3, 65, 17, 3), (4, 70, 1, 11)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_sizes(shape, layout):
    sizes = {"u0": (1,), "v": shape[2:3], "a": (1,)}
    for second in ("none", "normed"):
        assert_as_ever(terms_for(second, layout, shape), "cpu", ScanSpec(surrogate=Sigmoid()), sizes)


@needs_cpp
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_larger_than_the_cache_in_threads(layout):
    """Outputs beyond 16 MiB bypass the cache."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        terms = terms_for("plain", layout, (4, 48, 32, 30, 31), dtype=torch.float32)
        got, want = (run(terms, "cpu", ScanSpec(), SCALARS, keep, dtype=torch.float32) for keep in (True, False))
        for g, w in zip(got[:4], want[:4]):
            assert torch.equal(g, w)
        # In float32 a rounding may move an element over an edge of the surrogate here and there, no more.
        assert ((got[4] - want[4]).abs() > 1e-5).float().mean() < 1e-5
        assert (got[5] - want[5]).abs() < 1e-3 * want[5].abs()  # dU[0]
    finally:
        torch.set_num_threads(before)


@needs_cpp
def test_wrong_constants_are_refused():
    x, one = torch.randn(2, 3, 4, 5), torch.ones(1)
    good = torch.ones(4)

    def call(scale=good, extra=None, extra_scale=None):
        spec = ScanSpec()
        arguments = (x, one, one, one * 0.5, scale, good, extra, extra_scale, spec.codes, spec.constants)
        return current_scan_backward_op(x, None, None, *arguments)

    call()
    for bad in (torch.ones(3), torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="scale must be"):
            call(scale=bad)
    for bad in (x[:1], x.double(), x.transpose(1, 3).contiguous().transpose(1, 3)):
        with pytest.raises(ValueError, match="extra must be like x"):
            call(extra=bad)
    with pytest.raises(ValueError, match="extra_scale must be"):
        call(extra=x, extra_scale=torch.ones(2))


EDITS = {
    "scaled a little": lambda x: x.mul_(1.001),
    "a channel": lambda x: x[:, :, 7].zero_(),
    "a step": lambda x: x[2].zero_(),
    "a sample": lambda x: x[:, 3].neg_(),
    "a row": lambda x: x[..., 5, :].add_(1),
    "clamped": lambda x: x.clamp_(-1, 1),
    "one NaN per channel": lambda x: x[:, :, :, 0, 0].fill_(float("nan")),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("edit", EDITS)
def test_the_check_sees_what_autograd_does_not(edit, dtype):
    if edit == "scaled a little" and dtype == torch.bfloat16:
        pytest.skip("within rounding")
    for second in ("none", "plain", "normed", "static"):
        terms = terms_for(second, shape=(4, 8, 16, 8, 8), dtype=dtype)
        x = current(terms, 4).clone()
        assert is_sum(x, terms)
        EDITS[edit](x)
        assert not is_sum(x, terms)


def test_the_check_knows_infinities_and_nans_of_the_terms():
    terms = terms_for("plain")
    terms[0].y[1] = float("nan")
    terms[1].y[2] = float("inf")
    assert is_sum(current(terms, SHAPE[0]), terms)

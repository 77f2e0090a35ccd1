"""The scan of a current that is never in memory: the C++ kernel's way against the reference, with every gradient."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import ArcTan, Sigmoid
from steadyspike.kernels import current_scan
from steadyspike.kernels.current import Current
from steadyspike.kernels.current_op import affine_of, current_scan_op
from steadyspike.kernels.registry import get_backend
from steadyspike.kernels.terms import Term
from tests.kernels.scan_cases import LAYOUTS, arrange

pytestmark = pytest.mark.skipif(
    get_backend("cpu").why_not(torch.zeros(1)) is not None, reason="the C++ extension is not built"
)
SHAPE = (5, 2, 3, 4, 5)
SECOND = ["none", "plain", "normed", "static"]


def term(shape, layout, normed, seed, of_batch=True, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=g, dtype=torch.float64)
    y = (1.3 * y + 0.7 if normed else (y > 0.5) * 0.9).to(dtype)
    y = arrange(y, layout)[: 1 if layout == "static" else None].detach().requires_grad_()
    if not normed:
        return Term(y)
    axes = (0, 1, *range(3, len(shape)))
    var, mean = torch.var_mean(y.detach(), axes, correction=0)
    if not of_batch:
        var, mean = var * 1.3, mean + 0.1
    weight, bias = (torch.rand(shape[2], generator=g, dtype=torch.float64).to(dtype) + 0.5 for _ in range(2))
    return Term(y, weight.requires_grad_(), bias.requires_grad_(), mean, (var + 1e-5).rsqrt(), of_batch)


def terms_for(second, layout="contiguous", shape=SHAPE, of_batch=True, dtype=torch.float64):
    first = term(shape, layout, True, 0, of_batch, dtype)
    if second == "none":
        return (first,)
    if second == "static":
        y = term(shape, "contiguous", True, 3, of_batch, dtype)
        return first, Term(arrange(y.y, layout)[:1].detach().requires_grad_(), *y.tensors()[1:], of_batch=of_batch)
    return first, term(shape, layout, second == "normed", 4, of_batch, dtype)


def run(terms, backend, spec, sizes, steps=None, membrane=True, dtype=torch.float64):
    g = torch.Generator().manual_seed(7)
    u0, v, a = (torch.rand(sizes[k], generator=g, dtype=torch.float64).to(dtype) * 0.4 + 0.5 for k in ("u0", "v", "a"))
    leaves = [t.detach().requires_grad_() for t in (u0, v, a)]
    current = Current(terms, steps or terms[0].y.shape[0])
    result = current.scan(*leaves, spec, membrane=membrane, channelwise=True, backend=backend)
    outputs = [o for o in (result.out, result.u, result.m) if o is not None]
    cotangents = [torch.randn(o.shape, generator=g, dtype=torch.float64).to(dtype) for o in outputs]
    leaves += [t for part in terms for t in part.tensors() if t is not None and t.requires_grad]
    return [*(o.detach() for o in outputs), result.active, *torch.autograd.grad(outputs, leaves, cotangents)]


def assert_like_the_reference(terms, spec, sizes, tolerance=1e-10, **options):
    assert affine_of(terms, options.get("steps") or terms[0].y.shape[0]) is not None
    got, want = (run(terms, backend, spec, sizes, **options) for backend in ("cpu", "reference"))
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


@pytest.mark.parametrize("sizes", [SCALARS, CHANNELS, {**SCALARS, "u0": (1, *SHAPE[2:])}], ids=["1", "C", "element"])
@pytest.mark.parametrize(
    ("layout", "second"), [pair for pair in product(LAYOUTS, SECOND) if pair not in (("static", "static"),)]
)
def test_terms_and_layouts(layout, second, sizes):
    steps = SHAPE[0]
    assert_like_the_reference(terms_for(second, layout), ScanSpec(), sizes, steps=steps)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.family)
@pytest.mark.parametrize("of_batch", [True, False])
@pytest.mark.parametrize("second", ["none", "plain", "normed"])
def test_specs_and_fixed_statistics(second, of_batch, spec):
    assert_like_the_reference(terms_for(second, of_batch=of_batch), spec, SCALARS, membrane=False)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (70, 2, 3, 5), (2, 3, 65, 17, 3), (4, 70, 1, 11)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_sizes(shape, layout):
    sizes = {"u0": (1,), "v": shape[2:3], "a": (1,)}
    for second in ("none", "normed"):
        terms = terms_for(second, layout, shape, of_batch=shape[0] * shape[1] > 1)
        assert_like_the_reference(terms, ScanSpec(surrogate=Sigmoid()), sizes)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_larger_than_the_cache_in_threads(layout):
    """Outputs beyond 16 MiB bypass the cache."""
    shape = (4, 48, 32, 30, 31)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        terms = terms_for("plain", layout, shape, dtype=torch.float32)
        want = current_scan.current(terms, 4)
        sizes = {"u0": (1,), "v": (1,), "a": (1,)}
        got = run(terms, "cpu", ScanSpec(), sizes, dtype=torch.float32)
        plain = run((Term(want.requires_grad_()),), "cpu", ScanSpec(), sizes, dtype=torch.float32)
        # In float32 a rounding may flip a spike here and there, no more.
        assert (got[0] != plain[0]).float().mean() < 1e-5
        assert (got[3][1] - plain[3][1]).abs().sum() < 1e-4 * plain[3][1].sum()
        assert (got[4] - plain[4]).abs() < 1e-3 * plain[4].abs()  # dU[0]
    finally:
        torch.set_num_threads(before)


def test_wrong_constants_are_refused():
    x, one = torch.randn(2, 3, 4, 5), torch.ones(1)
    good = torch.ones(4)

    def call(scale=good, extra=None, extra_scale=None):
        spec = ScanSpec()
        arguments = (x, scale, good, extra, extra_scale, one, one, one * 0.5, spec.codes, spec.constants, False, False)
        return current_scan_op(*arguments)

    call()
    for bad in (torch.ones(3), torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="scale must be"):
            call(scale=bad)
    for bad in (x[:1], x.double(), x.transpose(1, 3).contiguous().transpose(1, 3)):
        with pytest.raises(ValueError, match="extra must be like x"):
            call(extra=bad)
    with pytest.raises(ValueError, match="extra_scale must be"):
        call(extra=x, extra_scale=torch.ones(2))

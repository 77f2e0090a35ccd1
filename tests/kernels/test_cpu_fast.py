"""The C++ kernel's path for the common case: float32 inside, soft reset, no membrane asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import FAMILIES, ScanSpec
from steadyspike.core.surrogate import SURROGATES, Rect
from steadyspike.kernels.scan.contract import Affine, Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from tests.kernels.built import needs_kernel
from tests.kernels.scan_cases import TUNED, Case, check_against_reference, draw_inputs, run

pytestmark = needs_kernel
NARROW = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(4, 3, 5, 7, 9), (1, 2, 64), (17, 2, 3, 8, 8), (33, 1, 300), (5, 4, 16, 8, 8)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("strict", [False, True])
def test_every_family_and_surrogate(family: str, surrogate: str, strict: bool) -> None:
    spec = ScanSpec(family, TUNED[surrogate], strict=strict)
    for i, v in enumerate(("scalar", "channel")):
        case = Case(spec, shape=(5, 4, 6, 8, 8), dtype=torch.float32, v=v, a=v, u0="element", membrane=False)
        check_against_reference(case, "cpu", seed=i)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "static", "strided_time"])
def test_shapes_and_layouts(dtype: torch.dtype, shape: tuple[int, ...], layout: str) -> None:
    for v in ("scalar", "channel"):
        case = Case(shape=shape, dtype=dtype, layout=layout, v=v, a="channel", membrane=False, channelwise=True)
        check_against_reference(case, "cpu")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_it_gives_the_spikes_of_the_general_path(dtype: torch.dtype) -> None:
    """Asking for the membrane chooses the general path."""
    case = Case(shape=(9, 4, 5, 8, 9), dtype=dtype, v="channel", u0="element", membrane=False)
    inputs = draw_inputs(case)
    fast, general = (run(replace(case, membrane=m), inputs, "cpu") for m in (False, True))
    for name in ("out", "u", "active_sum", "active_count"):
        assert torch.equal(fast[name], general[name]), name


@pytest.mark.parametrize("steps", [3, 20])
def test_a_nan_takes_only_its_block_to_the_general_path(steps: int) -> None:
    case = Case(shape=(steps, 2, 4, 16, 16), dtype=torch.float32, membrane=False)
    inputs = draw_inputs(case)
    x, u0, v, a = inputs.x.clone(), inputs.u0, inputs.v, inputs.a
    x[1, 1, 2, 3, 4] = float("nan")
    x[0, 0, 0, 0, 1] = float("inf")
    spec = case.spec
    backend = CpuBackend()
    scan = Scan(x, u0, v, a, Call.of(spec))
    out = backend.forward(scan)[0]
    want = backend.forward(scan._replace(call=Call.of(spec, membrane=True)))[0]
    assert torch.equal(out.nan_to_num(-7), want.nan_to_num(-7))
    assert out.isnan().sum() == steps - 1 and out[1:, 1, 2, 3, 4].isnan().all()
    g = torch.randn_like(x)
    got = backend.backward(scan, OutputGradients(g))
    want = backend.backward(scan, OutputGradients(g, m=torch.zeros_like(x)))
    assert got[2].isnan().all() and want[2].isnan().all()
    torch.testing.assert_close(got[0], want[0], rtol=2e-5, atol=2e-6, equal_nan=True)


def test_a_nan_gradient_is_not_lost_where_nothing_fires() -> None:
    x = torch.full((3, 1, 64), -50.0)  # far from the surrogate's window
    one, half, spec = torch.ones(1), torch.full((1,), 0.5), ScanSpec()
    g = torch.zeros_like(x)
    g[2, 0, 5] = float("nan")
    dx, _, dv, da = CpuBackend().backward(Scan(x, one, one, half, Call.of(spec)), OutputGradients(g))
    assert dx[:, 0, 5].isnan().all() and dv.isnan().all() and da.isnan().all()


@pytest.mark.parametrize("n", [10, 64, 100])
def test_what_a_row_is_filled_up_with_never_fires(n: int) -> None:
    """A start above the threshold makes every neuron fire without input; the fill-up counted as neurons once."""
    x, u0, v, a = torch.zeros(4, 1, n), torch.full((1,), 3.0), torch.ones(1), torch.full((1,), 0.5)
    for isa in range(len(CpuBackend().instruction_sets)):
        for potential in (False, True):
            active = CpuBackend(isa=isa).forward(Scan(x, u0, v, a, Call.of(ScanSpec())), potential=potential)[3]
            assert active[:, 0].tolist() == reference_scan(x, u0, v, a, ScanSpec()).active[:, 0].tolist() == [n / 16, n]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("norm", [False, True])
def test_a_gradient_that_is_not_finite_is_not_lost_outside_of_the_window(value: float, norm: bool) -> None:
    """One V for all, outside of the surrogate's window, where the gradient is multiplied by 0."""
    x = torch.randn(4, 2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    u0, v, a = torch.full((1,), 0.4), torch.ones(1), torch.full((1,), 0.5)
    g = torch.randn_like(x)
    g[3, 1, 2, 3, 4] = value
    x[:, 1, 2, 3, 4] = -9.0  # outside of the window
    affine = Affine(torch.ones(8), torch.zeros(8)) if norm else None
    scan = Scan(x, u0, v, a, Call.of(ScanSpec()), affine)
    got = CpuBackend().backward(scan, OutputGradients(g))
    want = CpuBackend().backward(scan, OutputGradients(g, m=torch.zeros_like(x)))
    assert want[0][:, 1, 2, 3, 4].isnan().all() and want[0].isnan().sum() == 4
    torch.testing.assert_close(got[0], want[0], rtol=2e-5, atol=2e-6, equal_nan=True)
    assert got[2].isnan().all() and got[3].isnan().all()


@pytest.mark.parametrize("width", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_plain_case_with_windows_of_every_width_and_height(width: float, scale: float, dtype: torch.dtype) -> None:
    """One V and one start for all, U[T] not asked for; potentials on V and on the window's edges among the others."""
    spec = ScanSpec(surrogate=Rect(width=width, scale=scale))
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 7, 8, 8, generator=g).mul(4).round().div(4).to(dtype)
    leaves = [x, torch.zeros(1), torch.ones(1), torch.full((1,), 0.5)]
    cotangent = torch.randn(x.shape, generator=g).to(dtype)
    got = CpuBackend().backward(Scan(*leaves, Call.of(spec)), OutputGradients(cotangent))
    wide = [t.double().requires_grad_() for t in leaves]
    want = torch.autograd.grad(reference_scan(*wide, spec).out, wide, cotangent.double())
    assert (reference_scan(*wide, spec).u == 0).any()
    rtol = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=rtol, atol=1e-4)


def test_thresholds_that_are_no_thresholds_take_the_general_path() -> None:
    x = torch.randn(3, 2, 128)
    for value in (0.0, -1.0, float("inf"), float("nan")):
        v, a, spec = torch.tensor([value]), torch.full((1,), 0.5), ScanSpec()
        results = [CpuBackend().forward(Scan(x, v * 0, v, a, Call.of(spec, m)))[0] for m in (False, True)]
        assert torch.equal(*(r.nan_to_num(-7) for r in results))


def test_a_bfloat16_gradient_that_is_not_finite_is_not_lost() -> None:
    """It is written without a check for NaN if all neurons share V: the block is then computed again."""
    one, half, start = torch.ones(1), torch.full((1,), 0.5), torch.full((1,), 0.3)
    for steps, at, value in ((3, 1, "nan"), (20, 3, "nan"), (20, 18, "inf"), (3, 0, "-inf")):
        x = torch.randn(steps, 2, 512, generator=torch.Generator().manual_seed(steps)).bfloat16()
        scan = Scan(x, start, one, half, Call.of(ScanSpec()))
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        g[at, 1, 77] = float(value)
        got = CpuBackend().backward(scan, OutputGradients(g))
        want = CpuBackend().backward(scan, OutputGradients(g, m=torch.zeros(x.shape)))
        assert not want[0].isfinite().all()
        torch.testing.assert_close(got[0], want[0], rtol=0, atol=0, equal_nan=True)
        for mine, other in zip(got[1:], want[1:], strict=True):
            assert not mine.isfinite().any() and not other.isfinite().any()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize(
    ("shape", "v", "u0"),
    [
        ((6, 3, 10, 9, 9), "channel", "scalar"),
        ((5, 2, 8, 16, 16), "scalar", "scalar"),
        ((18, 1, 4, 24, 24), "scalar", "element"),
    ],
)
def test_same_bits_on_every_instruction_set(dtype: torch.dtype, shape: tuple[int, ...], v: str, u0: str) -> None:
    case = Case(shape=shape, dtype=dtype, v=v, a=v, u0=u0, membrane=False)
    for spec in (*(ScanSpec("trsg", TUNED[name]) for name in SURROGATES), *(ScanSpec(family) for family in FAMILIES)):
        inputs = draw_inputs(case)
        x = inputs.x
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        results = []
        for isa in range(len(CpuBackend().instruction_sets)):
            backend = CpuBackend(isa=isa)
            scan = Scan(x, inputs.u0, inputs.v, inputs.a, Call.of(spec, channelwise=case.v == "channel"))
            actual = (*backend.forward(scan), *backend.backward(scan, OutputGradients(g)))
            results.append([t for t in actual if t is not None])  # no M
        for other in results[1:]:
            assert all(torch.equal(p, q) for p, q in zip(results[0], other, strict=True))

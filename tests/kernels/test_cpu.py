"""The C++ kernel against the reference: every combination, shape, layout and dtype, values and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import FAMILIES, ScanSpec
from steadyspike.core.surrogate import SURROGATES
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from tests.kernels.built import needs_kernel
from tests.kernels.scan_cases import (
    TUNED,
    Case,
    arrange,
    check_against_reference,
    draw_inputs,
    dyadic_inputs,
    few_specs,
    full_specs,
    parameter_cases,
    run,
    size_cases,
)

pytestmark = needs_kernel
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def assert_same_bits(got: dict[str, Tensor], want: dict[str, Tensor], *names: str) -> None:
    for name in names or want:
        assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_every_combination_in_float64(family: str, surrogate: str) -> None:
    specs = [s for s in full_specs() if s.family == family and s.surrogate.name == surrogate]
    assert len(specs) == 28
    for i, spec in enumerate(specs):
        check_against_reference(Case(spec), "cpu", seed=i)
        check_against_reference(Case(spec, v="channel", a="channel", u0="element"), "cpu", seed=i)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_combinations_in_narrower_types(dtype: torch.dtype, family: str) -> None:
    for i, spec in enumerate(s for s in full_specs() if s.family == family and s.strict == s.decay_input):
        check_against_reference(Case(spec, dtype=dtype), "cpu", seed=i)


@pytest.mark.parametrize("dtype", [torch.float64, *NARROW], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted", "static", "strided_time"])
def test_parameter_shapes_and_layouts(dtype: torch.dtype, layout: str) -> None:
    for case in (c for c in parameter_cases(dtype=dtype) if c.layout == layout):
        check_against_reference(case, "cpu")


@pytest.mark.parametrize("dtype", [torch.float64, *NARROW], ids=str)
def test_awkward_sizes(dtype: torch.dtype) -> None:
    for case in size_cases(dtype=dtype):
        check_against_reference(case, "cpu")


@pytest.mark.parametrize("shape", [(3, 2, 3, 16, 17), (3, 5, 300), (2, 2, 3, 40, 50)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted"])
def test_blocks_and_channel_runs_of_every_length(shape: tuple[int, ...], layout: str) -> None:
    for v, a, u0 in (
        ("channel", "scalar", "scalar"),
        ("scalar", "channel", "element"),
        ("channel", "channel", "channel"),
    ):
        check_against_reference(Case(shape=shape, layout=layout, v=v, a=a, u0=u0, channelwise=True), "cpu")


@pytest.mark.parametrize("steps", [16, 17, 32, 33, 64, 65, 300, 1200])
def test_windows_of_time(steps: int) -> None:
    """Longer than 32 steps the backward recomputes window by window from kept starting potentials."""
    check_against_reference(Case(shape=(steps, 2, 3, 5), v="channel", u0="element"), "cpu")


@pytest.mark.parametrize("dtype", [torch.float64, *NARROW], ids=str)
def test_spikes_and_potentials_have_the_references_bits(dtype: torch.dtype) -> None:
    """Not only away from the threshold: the kernel rounds where the reference rounds."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, 3, 11, 13, generator=g, dtype=torch.float64).add(0.5).to(dtype)
    v, a, u0 = (
        torch.tensor(p, dtype=torch.promote_types(dtype, torch.float32)) for p in ([0.9], [0.37, 0.5, 0.71], [0.3])
    )
    for spec in full_specs():
        got = lif_scan(x, u0, v, a, spec, membrane=True, backend="cpu")
        want = reference_scan(x, u0, v, a, spec, membrane=True)
        assert torch.equal(got.out, want.out)
        assert torch.equal(got.u, want.u)
        assert got.m is not None and want.m is not None and torch.equal(got.m, want.m)


@pytest.mark.parametrize("dtype", [torch.float64, *NARROW], ids=str)
def test_exactly_on_threshold_and_window_edge(dtype: torch.dtype) -> None:
    for spec in full_specs():
        spec = replace(spec, surrogate=SURROGATES[spec.surrogate.name]())
        case = Case(spec, shape=(3, 4, 3, 5), dtype=dtype)
        inputs = dyadic_inputs(case)
        m = reference_scan(inputs.x, inputs.u0, inputs.v, inputs.a, spec, membrane=True).m
        assert m is not None and (m == 1).any() and (m == 0.5).any() and (m == 1.5).any()
        check_against_reference(case, "cpu", inputs=inputs)


@pytest.mark.parametrize("surrogate", TUNED)
def test_surrogates_far_from_the_threshold(surrogate: str) -> None:
    """Large arguments: no overflow, no NaN, the tails of the reference."""
    x = torch.tensor([-1e30, -1e4, -300.0, -20.0, 20.0, 300.0, 1e4, 1e30], dtype=torch.float64).reshape(1, 8)
    for dtype, family in ((torch.float64, "as"), (torch.float64, "trsg"), (torch.float32, "rs")):
        case = Case(ScanSpec(family, TUNED[surrogate], "none"), shape=(1, 8), dtype=dtype)
        one = torch.ones(1, dtype=dtype)
        inputs = replace(draw_inputs(case), x=x.to(dtype), v=0.7 * one)
        got = run(case, inputs, "cpu")
        want = run(case, inputs, "reference")
        torch.testing.assert_close(got["dx"], want["dx"], rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=1e-30)


@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nan_and_infinity_go_where_they_go_in_the_reference(family: str, reset: str) -> None:
    x = torch.randn(4, 3, 100)
    x[1, 0, 3], x[0, 1, 5], x[3, 2, 99], x[2, 2, 50], x[2, 1, 51] = (
        float(s) for s in ("nan", "nan", "nan", "inf", "-inf")
    )
    v, a, u0 = torch.tensor([0.8]), torch.tensor([0.5]), torch.tensor([0.0])
    got = lif_scan(x, u0, v, a, ScanSpec(family, reset=reset), membrane=True, backend="cpu")
    want = reference_scan(x, u0, v, a, ScanSpec(family, reset=reset), membrane=True)
    assert want.out.isnan().sum() >= 3
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_threshold_that_is_not_finite(bad: float) -> None:
    x, a, u0 = torch.randn(3, 2, 40), torch.tensor([0.5]), torch.tensor([0.1])
    x[0, 0, 0] = float("inf")
    for strict in (False, True):
        for family in FAMILIES:
            spec = ScanSpec(family, strict=strict)
            got = lif_scan(x, u0, torch.tensor([bad]), a, spec, backend="cpu")
            want = reference_scan(x, u0, torch.tensor([bad]), a, spec)
            torch.testing.assert_close(got.out, want.out, rtol=0, atol=0, equal_nan=True)


def test_every_layout_gives_the_same_numbers_without_a_copy() -> None:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, 8, 6, 5, generator=g)
    case = Case(shape=tuple(x.shape), dtype=torch.float32, v="channel", a="channel")
    inputs = draw_inputs(case)
    want = run(case, inputs, "cpu")
    for layout in ("channels_last", "permuted", "strided_time"):
        other = replace(inputs, x=arrange(inputs.x, layout))
        got = run(case, other, "cpu")
        assert_same_bits(got, want, "out", "u", "m", "dx", "active_count")
        for name in ("out", "m", "dx"):
            assert got[name].stride()[1:] == other.x.stride()[1:], (layout, name)


def test_repeated_frame_is_read_in_place() -> None:
    case = Case(shape=(6, 2, 3, 7), dtype=torch.float32, layout="static")
    inputs = draw_inputs(case)
    assert inputs.x.stride(0) == 0
    copied = replace(inputs, x=inputs.x.contiguous())
    assert_same_bits(run(case, inputs, "cpu"), run(case, copied, "cpu"))


@pytest.mark.parametrize("rest", [3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_tensors_are_streamed_past_the_cache(dtype: torch.dtype, rest: int) -> None:
    """Over 32 MB: streaming stores and huge pages, at row starts of every alignment; sums stay exact to float32."""
    n = rest + (2_100_032 if dtype == torch.float32 else 4_200_000)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, n, generator=g).add_(0.4).to(dtype)
    cotangent = torch.rand(4, 1, n, generator=g).to(dtype)
    u0, v, a = torch.tensor([0.1]), torch.tensor([0.9]), torch.tensor([0.45])
    results = []
    for backend in ("cpu", "reference"):
        leaves = [t.clone().requires_grad_() for t in (x, u0, v, a)]
        res = lif_scan(*leaves, ScanSpec(), backend=backend)
        results.append((res, torch.autograd.grad(res.out, leaves, cotangent)))
    (got, got_grads), (want, want_grads) = results
    assert torch.equal(got.out, want.out) and torch.equal(got.u, want.u)
    torch.testing.assert_close(got.active, want.active, rtol=1e-12, atol=1e-6)
    torch.testing.assert_close(got_grads[0], want_grads[0], rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
    for i in (1, 2, 3):
        torch.testing.assert_close(got_grads[i], want_grads[i], rtol=1e-4, atol=1e-2)


def test_threshold_gradient_is_summed_in_double() -> None:
    """Four million equal terms: a float32 running sum would be off in the third digit."""
    n = 4_000_000
    x, one = torch.full((1, 1, n), 2.0), torch.ones(1)
    v = one.clone().requires_grad_()
    res = lif_scan(x, 0 * one, v, 0.55 * one, ScanSpec("trsg", TUNED["arctan"]), backend="cpu")
    cotangent = torch.full_like(x, 0.1)
    (dv,) = torch.autograd.grad(res.out, v, cotangent)
    single = lif_scan(x[:, :, :1], 0 * one, v, 0.55 * one, ScanSpec("trsg", TUNED["arctan"]), backend="cpu")
    (one_term,) = torch.autograd.grad(single.out, v, cotangent[:, :, :1])
    torch.testing.assert_close(dv.double(), one_term.double() * n, rtol=2e-7, atol=0)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("kind", ["scalar", "channel"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_same_bits_for_every_run_thread_count_and_instruction_set(kind: str, layout: str) -> None:
    shapes = {"v": kind, "a": kind, "u0": kind, "channelwise": True}
    case = Case(ScanSpec(surrogate=TUNED["sigmoid"]), (3, 5, 7, 90, 41), torch.float32, layout, **shapes)
    inputs = draw_inputs(case)
    torch.set_num_threads(1)
    want = run(case, inputs, "cpu")
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert_same_bits(run(case, inputs, "cpu"), want)
    g = torch.randn_like(inputs.x)
    tensors = (inputs.x, inputs.u0, inputs.v, inputs.a)
    sets = CpuBackend().instruction_sets
    assert sets[0] == "base"
    runs = [CpuBackend(isa=i) for i in range(len(sets))]
    scan = Scan(*tensors, Call.of(case.spec, membrane=True, channelwise=True))
    forward = [backend.forward(scan) for backend in runs]
    backward = [backend.backward(scan, OutputGradients(g)) for backend in runs]
    for results in (forward, backward):
        for other in results[1:]:
            assert all(torch.equal(t, r) for t, r in zip(other, results[0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_all_instruction_sets_against_the_reference(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in range(len(CpuBackend().instruction_sets)):
        monkeypatch.setattr("steadyspike.kernels.scan.operator.get_backend", lambda name, isa=isa: CpuBackend(isa=isa))
        for spec in few_specs():
            check_against_reference(Case(spec, shape=(3, 2, 5, 9), dtype=dtype, a="channel"), "cpu")


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("dtype", [torch.float64, *NARROW], ids=str)
def test_every_output_element_is_written(dtype: torch.dtype) -> None:
    backend = CpuBackend()
    cases = [*size_cases(dtype=dtype), *(c for c in parameter_cases(dtype=dtype) if c.layout == "channels_last")]
    for case in cases:
        inputs = draw_inputs(case)
        tensors = (inputs.x, inputs.u0, inputs.v, inputs.a)
        scan = Scan(*tensors, Call.of(case.spec, membrane=True, channelwise=case.channelwise))
        outputs = backend.forward(scan)
        grads = backend.backward(scan, OutputGradients(torch.ones_like(inputs.x)))
        for tensor in (*outputs, *grads):
            assert not tensor.isnan().any(), case

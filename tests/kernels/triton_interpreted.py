"""The Triton kernels on the CPU, in Triton's interpreter, against the reference; started by test_triton.py.

Triton decides at import whether it interprets, so this file needs its own process:
``TRITON_INTERPRET=1 python -m pytest tests/kernels/triton_interpreted.py``. Its name keeps it out of a plain run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.triton import launch as triton_launch
from steadyspike.kernels.scan.triton.backend import TritonBackend
from steadyspike.kernels.scan.triton.launch import Launch
from tests.kernels.scan_cases import (
    RESETS,
    Case,
    Inputs,
    check_against_reference,
    draw_inputs,
    dyadic_inputs,
    few_specs,
    full_specs,
    parameter_cases,
    size_cases,
)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """With deterministic algorithms torch fills every uninitialised tensor with NaN: what a kernel forgets to write, or
    reads before it is written, shows up in the comparison."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(8).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _guarded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address that a kernel reads or writes must lie in the storage of one of the tensors it was given."""
    from triton.runtime.interpreter import InterpreterBuilder

    storages: list[tuple[int, int]] = []
    run, load, store = Launch.run, InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def guarded_run(launch: Launch, *arguments: Any) -> None:
        given = [t.untyped_storage() for t in launch.arguments.values() if isinstance(t, Tensor)]
        storages[:] = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in given]
        run(launch, *arguments)

    def check(pointers: Any, mask: Any) -> None:
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        inside = np.zeros(used.shape, bool)
        for start, end in storages:
            inside |= (used >= start) & (used < end)
        assert inside.all(), "a kernel left the memory of its arguments"

    def guarded_load(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(builder, pointers, mask, *rest)

    def guarded_store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(builder, pointers, value, mask, *rest)

    monkeypatch.setattr(Launch, "run", guarded_run)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", guarded_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", guarded_store)


def test_the_interpreter_is_on() -> None:
    assert triton_launch.interpreting()
    assert choose_backend("triton", torch.zeros(1, 1)) == "triton"


@pytest.mark.parametrize("spec", few_specs(), ids=str)
def test_specs(spec: ScanSpec) -> None:
    check_against_reference(Case(spec, shape=(3, 2, 3, 4), v="channel", a="channel", u0="channel"), "triton")


@pytest.mark.slow
@pytest.mark.parametrize("spec", full_specs(), ids=str)
def test_every_spec(spec: ScanSpec) -> None:
    check_against_reference(Case(spec, shape=(3, 2, 3, 4), u0="element"), "triton")


def some_slow(cases: list[Case], fast: Callable[[int, Case], bool]) -> list[object]:
    """The interpreter takes a second per 1000 tile steps, so what is not ``fast`` is left to the full run."""
    marks = [() if fast(i, case) else pytest.mark.slow for i, case in enumerate(cases)]
    return [pytest.param(case, marks=mark, id=str(case)) for case, mark in zip(cases, marks)]


# Every fifth of the grid still holds every layout, every shape of each parameter and every pair of these shapes.
@pytest.mark.parametrize("case", some_slow(parameter_cases(shape=(2, 2, 3, 4, 5)), lambda i, _: i % 5 == 0))
def test_parameter_shapes_and_layouts(case: Case) -> None:
    check_against_reference(case, "triton")


@pytest.mark.parametrize("case", some_slow(size_cases(), lambda _, case: case.shape[0] < 30))
def test_sizes(case: Case) -> None:
    check_against_reference(case, "triton")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_half_precision(dtype: torch.dtype, layout: str) -> None:
    check_against_reference(Case(dtype=dtype, layout=layout, v="channel", channelwise=True), "triton")
    check_against_reference(Case(dtype=dtype, layout=layout, shape=(11, 2, 3, 2, 2)), "triton")


# 1 to 8 float32 steps stay in registers; 9 and more are cut into segments, of unequal length but for 16.
@pytest.mark.parametrize("timesteps", [1, 4, 8, 9, 16, 17, 27])
def test_segments_of_time(timesteps: int) -> None:
    case = Case(shape=(timesteps, 2, 3, 4), dtype=torch.float32, spec=ScanSpec(surrogate="triangle"))
    check_against_reference(case, "triton")


@pytest.mark.parametrize("reset", RESETS, ids=str)
@pytest.mark.parametrize("strict", [False, True])
def test_ties_at_the_threshold_and_at_window_edges(reset: Reset, strict: bool) -> None:
    case = Case(ScanSpec(reset=reset, strict=strict), dtype=torch.float32)
    check_against_reference(case, "triton", inputs=dyadic_inputs(case))


@pytest.mark.parametrize("spec", few_specs()[::5], ids=str)
@pytest.mark.parametrize("outputs", ["out", "u", "m", "out m"])
def test_gradient_of_some_outputs_only(outputs: str, spec: ScanSpec) -> None:
    inputs = draw_inputs(Case(spec, shape=(3, 2, 3, 2)))

    def gradients(backend: str) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (inputs.x, inputs.u0, inputs.v, inputs.a)]
        result = lif_scan(*leaves, spec, membrane="m" in outputs.split(), backend=backend)
        loss = sum(getattr(result, name).cos().sum() for name in outputs.split())
        assert isinstance(loss, Tensor)
        return torch.autograd.grad(loss, leaves, materialize_grads=True)

    for got, want in zip(gradients("triton"), gradients("reference")):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, from the interpreter's inf - inf
@pytest.mark.parametrize("spec", few_specs()[::2], ids=str)
def test_nan_is_never_a_silent_zero(spec: ScanSpec) -> None:
    inputs = draw_inputs(Case(spec, shape=(4, 2, 3, 2)))
    x = inputs.x.clone()
    x[1, 0, 1, 0], x[0, 1, 2, 1] = float("nan"), float("inf")

    def run(backend: str) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, inputs.u0, inputs.v, inputs.a)]
        out, u, m, active = lif_scan(*leaves, spec, membrane=True, channelwise=True, backend=backend)
        # U takes part in the loss: for the reference no gradient into it is not the same as 0, and 0 * NaN is NaN.
        return [out, u, m, active, *torch.autograd.grad(out.sum() + u.sum(), leaves)]  # type: ignore[list-item]

    got, want = run("triton"), run("reference")
    assert got[0][1, 0, 1, 0].isnan()
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=1e-11, atol=1e-11, equal_nan=True)


TILED = [
    Case(shape=(2, 3, 2, 15, 15), v="channel", u0="channel", channelwise=True),
    Case(shape=(2, 3, 40, 3, 3), layout="channels_last", a="channel", u0="element"),
    Case(shape=(2, 10, 40, 3), v="channel", a="channel"),
    Case(shape=(2, 3, 7, 31, 3)),
]


def run_on(backend: TritonBackend, case: Case, inputs: Inputs) -> list[Tensor]:
    """All results of a backend object, with all three gradients given."""
    scan = Scan(inputs.x, inputs.u0, inputs.v, inputs.a, Call.of(case.spec, True, case.channelwise))
    out, u, m, active = backend.forward(scan)
    return [out, u, m, active, *backend.backward(scan, OutputGradients(out, u, m))]


@pytest.mark.parametrize("case", TILED, ids=str)
def test_many_tiles(case: Case) -> None:
    check_against_reference(case, "triton")


@pytest.mark.parametrize("case", TILED, ids=str)
def test_block_size_changes_nothing(case: Case) -> None:
    inputs = draw_inputs(case)
    want = run_on(TritonBackend(), case, inputs)
    for block in (256, 2048):
        for g, w in zip(run_on(TritonBackend((block, 4)), case, inputs), want):
            torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)


def test_results_repeat_bit_for_bit() -> None:
    case = replace(TILED[0], dtype=torch.float32)
    inputs = draw_inputs(case)
    for first, second in zip(run_on(TritonBackend(), case, inputs), run_on(TritonBackend(), case, inputs)):
        assert torch.equal(first, second)


@pytest.mark.parametrize("case", TILED, ids=str)
def test_64_bit_offsets(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 2^31 elements does not fit a test; the code path that it takes is forced instead."""
    inputs = draw_inputs(case)
    narrow = run_on(TritonBackend(), case, inputs)
    monkeypatch.setattr(triton_launch.Tiles, "wide", True)
    for got, want in zip(run_on(TritonBackend(), case, inputs), narrow):
        assert torch.equal(got, want)


@pytest.mark.parametrize("case", TILED[:2], ids=str)
def test_tuning_leaves_no_trace(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner runs every block size on the same buffers, smallest first, and here prefers the largest: partial sums
    that the trials left behind must not be counted again."""
    trials = []

    def bench(call, quantiles):  # type: ignore[no-untyped-def]
        call()
        trials.append(-len(trials))
        return [float(trials[-1])] * 3

    case = replace(case, shape=(1, *case.shape[1:]))
    inputs = draw_inputs(case)
    want = run_on(TritonBackend(), case, inputs)
    tuned = triton_launch._tuned.__wrapped__

    sizes = []

    def with_bench(*args):  # type: ignore[no-untyped-def]
        tuner = tuned(*args)
        sizes.extend(triton_launch.sizes_to_try(args[-1]))
        tuner._do_bench = bench
        return tuner

    monkeypatch.setattr(triton_launch, "_tuned", with_bench)
    monkeypatch.setattr(triton_launch, "interpreting", lambda: False)
    torch.use_deterministic_algorithms(False)
    got = run_on(TritonBackend(), case, inputs)
    assert len(trials) == len(sizes) > len(triton_launch.CONFIGS)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
def test_parameters_without_axes_and_a_layer_without_channels(shape: tuple[int, ...]) -> None:
    parameters = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.1, 0.5, 0.6)]
    x = torch.rand(shape, dtype=torch.float64)
    results = []
    for backend in ("triton", "reference"):
        out, u, _, active = lif_scan(x, *parameters, ScanSpec(), channelwise=True, backend=backend)
        results.append([out, active, *torch.autograd.grad(out.sum() + u.sum(), parameters)])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want)


def test_an_unsupported_dtype_is_named() -> None:
    assert "torch.int64" in str(TritonBackend().why_not(torch.zeros(2, 3, dtype=torch.int64)))


@pytest.mark.parametrize("layout", ["every_other", "overlapping"])
def test_steps_that_are_not_dense_are_copied(layout: str) -> None:
    x = torch.randn(3, 2, 8, dtype=torch.float64)
    x = x[..., ::2] if layout == "every_other" else x[..., :1].expand(3, 2, 4)
    one = torch.ones(1, dtype=torch.float64)
    got = lif_scan(x, one * 0, one * 0.3, one * 0.5, ScanSpec(), backend="triton")
    want = reference_scan(x, one * 0, one * 0.3, one * 0.5, ScanSpec())
    torch.testing.assert_close(got.out, want.out)

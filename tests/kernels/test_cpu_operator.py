"""The C++ kernel as an operator: bad input, missing gradients, opcheck, torch.compile, and why it may not run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.library import LIBRARY
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.kernels.scan.contract import Call, Scan
from steadyspike.kernels.scan.cpu import neuron_calls
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.operator import lif_scan_backward_op, lif_scan_op
from tests.kernels.built import needs_kernel
from tests.kernels.scan_cases import Case, draw_inputs

SPEC = ScanSpec()


def inputs(shape: tuple[int, ...] = (3, 2, 4, 5), seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawn = draw_inputs(Case(shape=shape), seed)
    return drawn.x, drawn.u0, drawn.v, drawn.a


def both(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> None:
    """Kernel and reference agree on this input, values and gradients."""
    results = []
    for backend in ("cpu", "reference"):
        leaves = [t.detach().requires_grad_() for t in (x, u0, v, a)]
        res = lif_scan(*leaves, SPEC, membrane=True, backend=backend)
        assert res.m is not None
        loss = (
            (res.out * torch.arange(res.out.numel()).reshape(res.out.shape)).sum() + res.u.sum() + res.m.square().sum()
        )
        results.append([res.out, res.u, res.m, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@needs_kernel
def test_auto_takes_the_kernel_on_the_cpu() -> None:
    assert choose_backend("auto", torch.empty(1)) == "cpu"
    assert choose_backend("auto", torch.empty(1, dtype=torch.int32)) == "reference"


@needs_kernel
def test_input_that_is_not_dense_or_overlaps_is_copied() -> None:
    x, u0, v, a = inputs((3, 2, 4, 10))
    both(x[..., ::2], u0, v, a)
    both(x[:, :, 1:3], u0, v, a)
    both(x[:, :1].expand(3, 5, 4, 10), u0, v, a)  # one sample repeated: overlapping memory
    both(x[:, :, :, :1].expand(3, 2, 4, 7), u0, v, a)
    both(x.as_strided((3, 2, 4, 5), (40, 20, 5, 2)), u0, v, a)
    both(x.flatten()[:23].unfold(0, 20, 1)[:, None, :], u0, v, a)  # overlapping in time only: read in place


@needs_kernel
def test_initial_potential_in_any_layout_and_parameters_that_are_views() -> None:
    x, _, _, _ = inputs((3, 2, 4, 5))
    g = torch.Generator().manual_seed(5)
    both(
        x,
        torch.rand(5, 4, 2, generator=g, dtype=x.dtype).permute(2, 1, 0),
        *(torch.full((1,), p).double() for p in (1, 0.4)),
    )
    both(x, torch.rand(1, 4, 1, generator=g, dtype=x.dtype), *(torch.full((1,), p).double() for p in (1, 0.4)))
    wide = torch.rand(8, 2, generator=g, dtype=x.dtype).add(0.3)
    both(x, wide[:4, 0], wide[4:, 0], wide[:4, 1].mul(0.5))


@needs_kernel
@pytest.mark.parametrize("used", ["out", "u", "m"])
def test_gradient_into_one_output_only(used: str) -> None:
    grads = []
    for backend in ("cpu", "reference"):
        leaves = [t.requires_grad_() for t in inputs()]
        output = getattr(lif_scan(*leaves, SPEC, membrane=True, backend=backend), used)
        grads.append(torch.autograd.grad(output.square().sum() + output.sum(), leaves))
    for got, want in zip(*grads):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@needs_kernel
def test_gradient_that_is_expanded_and_leaves_that_need_none() -> None:
    x, u0, v, a = inputs()
    v.requires_grad_()
    got, want = (lif_scan(x, u0, v, a, SPEC, backend=b).out.mean(0).sum() for b in ("cpu", "reference"))
    torch.testing.assert_close(torch.autograd.grad(got, v), torch.autograd.grad(want, v), rtol=1e-12, atol=1e-12)
    assert not lif_scan(x, u0, v.detach(), a, SPEC, backend="cpu").out.requires_grad
    assert not lif_scan(x, u0, v, a, SPEC, backend="cpu").active.requires_grad


BAD = {
    "threshold per channel": (ValueError, "v must have 1 element", lambda x, u0, v, a: (x, u0, v.repeat(3), a)),
    "a per batch and channel": (ValueError, "a must have 1 element", lambda x, u0, v, a: (x, u0, v, a.repeat(2, 2))),
    "u0 of another shape": (ValueError, "u0 must have shape", lambda x, u0, v, a: (x, u0.repeat(7), v, a)),
    "no time step": (ValueError, "at least one time step", lambda x, u0, v, a: (x[:0], u0, v, a)),
    "no batch axis": (ValueError, "must be \\[T, B", lambda x, u0, v, a: (x[:, 0, 0, 0], u0, v, a)),
    "integers": (TypeError, "got torch.int64", lambda x, u0, v, a: (x.long(), u0, v, a)),
    "another device": (ValueError, "v is on meta", lambda x, u0, v, a: (x, u0, v.to("meta"), a)),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_bad_arguments_are_named(name: str, backend: str) -> None:
    error, text, spoil = BAD[name]
    with pytest.raises(error, match=text):
        lif_scan(*spoil(*inputs()), SPEC, backend=backend)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="unknown backend 'cuda'; known: auto, reference, cpu, triton"):
        lif_scan(*inputs(), SPEC, backend="cuda")


@needs_kernel
def test_the_operator_itself_refuses_what_would_be_read_out_of_bounds() -> None:
    x, u0, v, a = inputs((3, 2, 4, 10))
    call = Call.of(SPEC)
    copied, *_ = lif_scan_op(x[..., ::2], u0, v, a, *call)
    assert torch.equal(copied, reference_scan(x[..., ::2], u0, v, a, SPEC).out)
    with pytest.raises(TypeError, match=r"v must be torch\.float64"):
        lif_scan_op(x, u0, v.float(), a, *call)
    with pytest.raises(ValueError, match="v and a must be contiguous"):
        lif_scan_op(x, u0, v.repeat(8)[::2], a, *call)
    with pytest.raises(ValueError, match="memory order"):
        lif_scan_op(x, x[0].mT.contiguous().mT, v, a, *call)
    with pytest.raises(ValueError, match="gradient must have x's shape"):
        lif_scan_backward_op(x[:2], None, None, x, u0, v, a, *call)
    with pytest.raises(RuntimeError, match="out of range"):
        lif_scan_op(x, u0, v, a, *call._replace(codes=[7, *call.codes[1:]]))


@needs_kernel
def test_mixed_float_types_are_converted() -> None:
    x, u0, v, a = inputs()
    got = lif_scan(x.float(), u0, v.half(), a, SPEC, backend="cpu")
    want = reference_scan(x.float(), u0, v.half(), a, SPEC)
    assert got.out.dtype == torch.float32 and torch.equal(got.out, want.out)


@needs_kernel
@pytest.mark.parametrize("membrane", [False, True])
def test_opcheck(membrane: bool) -> None:
    x, u0, v, a = inputs()
    permuted = x.movedim(2, -1).contiguous().movedim(-1, 2)
    for leaves in ((x, u0, v, a), (permuted, permuted[0], v.repeat(4), a)):
        x_, u_, v_, a_ = (t.detach().clone().requires_grad_() for t in leaves)
        torch.library.opcheck(lif_scan_op, (x_, u_, v_, a_, *Call.of(SPEC, membrane, channelwise=True)))
    g = torch.randn_like(x)
    m = torch.randn_like(x) if membrane else None
    tests = ("test_schema", "test_faketensor")
    args = (g, g[0].clone(), m, x, u0, v, a, *Call.of(SPEC, membrane))
    torch.library.opcheck(lif_scan_backward_op, args, test_utils=tests)


@needs_kernel
def test_compiles_as_one_graph_for_training() -> None:
    torch._dynamo.reset()

    def loss(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> Tensor:
        res = lif_scan(2 * x, u0, v, a, SPEC, membrane=True)
        assert res.m is not None
        return (res.out * x).sum() + res.u.square().sum() + res.m.sum()

    leaves = [t.requires_grad_() for t in inputs()]
    want = torch.autograd.grad(loss(*leaves), leaves)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves), leaves)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)


def test_reasons_not_to_run(tmp_path: Path) -> None:
    x = torch.empty(1)
    assert "on meta, not on the CPU" in str(CpuBackend().why_not(x.to("meta")))
    assert "torch.int32" in str(CpuBackend().why_not(x.int()))
    missing = CpuBackend(tmp_path / "_native.so")
    assert "not built" in str(missing.why_not(x))
    with pytest.raises(RuntimeError, match="not built"):
        missing.forward(Scan(*(t.float() for t in inputs()), Call.of(SPEC)))
    (tmp_path / "broken.so").write_bytes(b"not a library")
    assert "does not load" in str(CpuBackend(tmp_path / "broken.so").why_not(x))


@needs_kernel
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("steadyspike.kernels.scan.cpu.neuron_calls.ABI", 1)
    other = shutil.copy(LIBRARY, tmp_path / "other.so")  # the answer for LIBRARY itself is cached
    assert "other.so was built from another version" in str(CpuBackend(other).why_not(torch.empty(1)))


@needs_kernel
def test_a_library_without_the_norms_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise the forward would run and the backward would raise an error."""
    names = (*neuron_calls._NAMES[:-1], "steadyspike_norm_of_a_newer_version")
    assert neuron_calls._NAMES[-1] == "steadyspike_norm_sums"
    monkeypatch.setattr("steadyspike.kernels.scan.cpu.neuron_calls._NAMES", names)
    other = shutil.copy(LIBRARY, tmp_path / "other.so")
    assert "does not load" in str(CpuBackend(other).why_not(torch.empty(1)))

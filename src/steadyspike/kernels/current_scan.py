"""Scans and sums of currents that are recomputed, not kept: what autograd saves are the terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.lif import ScanResult, reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.backend import compute_dtype
from steadyspike.kernels.check import like_step
from steadyspike.kernels.current_op import affine_of, current_scan_backward_op, current_scan_op
from steadyspike.kernels.op import lif_scan_backward_op
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.terms import Term, current

PER_TERM = len(Term.__dataclass_fields__) - 1  # tensors of a term


class Call(NamedTuple):
    """The arguments of a scan that are no tensors."""

    spec: ScanSpec
    steps: int
    membrane: bool
    channelwise: bool
    backend: str
    of_batch: tuple[bool, ...]


def _flat(terms: tuple[Term, ...]) -> Iterator[Tensor | None]:
    for term in terms:
        yield from term.tensors()


def _terms(tensors: tuple[Tensor | None, ...], of_batch: tuple[bool, ...]) -> tuple[Term, ...]:
    """The inverse of `_flat`."""
    rows = (tensors[i * PER_TERM : (i + 1) * PER_TERM] for i in range(len(of_batch)))
    return tuple(Term(*row, of_batch=batch) for row, batch in zip(rows, of_batch))  # type: ignore[arg-type, misc]


def _term_gradients(terms: tuple[Term, ...], dz: Tensor, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients of the tensors of `_flat`, those ``needed``."""
    grads: list[Tensor | None] = []
    for i, term in enumerate(terms):
        wanted = needed[i * PER_TERM], needed[i * PER_TERM + 1], needed[i * PER_TERM + 2]
        grads += [*term.gradients(dz, wanted), None, None]
    return grads


class _Scan(torch.autograd.Function):
    """The LIF scan of a current; saves the terms, u0, v and a, and works the current out once more in the backward."""

    @staticmethod
    def forward(ctx: Any, call: Call, u0: Tensor, v: Tensor, a: Tensor, *flat: Tensor | None) -> tuple[Tensor, ...]:  # type: ignore[override]
        out, u, m, active = _run(call, _terms(flat, call.of_batch), u0, v, a)
        ctx.call = call
        ctx.save_for_backward(u0, v, a, *flat)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(active)
        return out, u, out.new_empty(0) if m is None else m, active

    @staticmethod
    def backward(ctx: Any, g_out: Tensor | None, g_u: Tensor | None, g_m: Tensor | None, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        call, needed = ctx.call, ctx.needs_input_grad
        g_m = g_m if call.membrane else None
        if g_out is None and g_u is None and g_m is None:
            return (None,) * len(needed)
        u0, v, a, *flat = ctx.saved_tensors
        terms = _terms(tuple(flat), call.of_batch)
        dz, du0, dv, da = _scan_gradients(call, (g_out, g_u, g_m), terms, u0, v, a)
        return None, du0, dv, da, *_term_gradients(terms, dz, needed[4:])


def _start(u0: Tensor, x: Tensor) -> Tensor:
    """u0 as the kernels take it."""
    return u0 if u0.ndim < 2 else like_step(u0, x)


def _run(call: Call, terms: tuple[Term, ...], u0: Tensor, v: Tensor, a: Tensor) -> ScanResult:
    """(out, U[T], M or None, active); on the CPU the kernel works the current out as it goes, else it is written."""
    spec, fused = call.spec, affine_of(terms, call.steps) if call.backend == "cpu" else None
    if fused is not None:
        x, affine = fused
        arguments = (x, *affine, _start(u0, x), v, a, spec.codes, spec.constants, call.membrane, call.channelwise)
        return ScanResult(*current_scan_op(*arguments))
    z = current(terms, call.steps)
    return lif_scan(z, u0, v, a, spec, membrane=call.membrane, channelwise=call.channelwise, backend=call.backend)


def _scan_gradients(
    call: Call, grads: tuple[Tensor | None, ...], terms: tuple[Term, ...], u0: Tensor, v: Tensor, a: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the current, u0, v and a."""
    spec, fused = call.spec, affine_of(terms, call.steps) if call.backend == "cpu" else None
    if fused is not None:
        x, affine = fused
        dz, du0, dv, da = current_scan_backward_op(*grads, x, *affine, _start(u0, x), v, a, spec.codes, spec.constants)
        return dz, du0.sum_to_size(u0.shape), dv, da
    z = current(terms, call.steps)
    if call.backend != "reference":
        dz, du0, dv, da = lif_scan_backward_op(*grads, z, _start(u0, z), v, a, spec.codes, spec.constants, call.backend)
        return dz, du0.sum_to_size(u0.shape), dv, da
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (z, u0, v, a)]
        z, u0, v, a = leaves
        out, u, m, _ = reference_scan(z, u0, v, a, spec, membrane=call.membrane)
        pairs = [(o, g) for o, g in zip((out, u, m), grads) if o is not None and g is not None]
        got = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(got, leaves))  # type: ignore[return-value]


class _Sum(torch.autograd.Function):
    """The current as a tensor; saves the terms, not the sum."""

    @staticmethod
    def forward(ctx: Any, steps: int, of_batch: tuple[bool, ...], *flat: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.of_batch = of_batch
        ctx.save_for_backward(*flat)
        return current(_terms(flat, of_batch), steps)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        terms = _terms(ctx.saved_tensors, ctx.of_batch)
        return None, None, *_term_gradients(terms, dz, ctx.needs_input_grad[2:])


def sum_terms(terms: tuple[Term, ...], steps: int) -> Tensor:
    """The current as a differentiable tensor [T, B, C, ...]."""
    return _Sum.apply(steps, tuple(t.of_batch for t in terms), *_flat(terms))


def scan_terms(terms: tuple[Term, ...], u0: Tensor, v: Tensor, a: Tensor, call: Call) -> ScanResult:
    """`lif_scan` of the sum of ``terms``, which is not kept for the backward."""
    dtype = compute_dtype(terms[0].y)
    u0, v, a = (p.to(dtype).contiguous() for p in (u0, v, a))
    out, u, m, active = _Scan.apply(call, u0, v, a, *_flat(terms))
    return ScanResult(out, u, m if call.membrane else None, active)

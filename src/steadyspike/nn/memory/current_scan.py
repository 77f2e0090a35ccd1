"""A LIF scan that does not save its input current; it saves the current's terms, and the backward adds them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import compute_dtype, dense_steps, like_step
from steadyspike.kernels.once import once
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.contract import Call, Results, Scan
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.kernels.scan.operator import lif_scan_backward_op
from steadyspike.nn.memory.affine_op import affine_of, current_scan_backward_op
from steadyspike.nn.memory.current import Term, current

NOT_TWICE = (
    "a scan that recomputes its input current cannot be differentiated twice; for gradients of gradients undo "
    "save_memory (steadyspike.nn.memory.transform.restore_memory) and use neurons with backend='reference'"
)
PER_TERM = len(Term.__dataclass_fields__)  # number of tensors in a term


def _terms(flat: tuple[Tensor | None, ...]) -> tuple[Term, ...]:
    """Groups a flat sequence of tensors into terms."""
    return tuple(Term(*flat[i : i + PER_TERM]) for i in range(0, len(flat), PER_TERM))  # type: ignore[arg-type]


class _Scan(torch.autograd.Function):
    """`lif_scan` of ``x``, the sum of ``terms``. Saves the terms, u0, v and a, but not x; x gets the gradient."""

    @staticmethod
    def forward(
        ctx: Any, spec: ScanSpec, call: Call, terms: tuple[Term, ...], x: Tensor, u0: Tensor, v: Tensor, a: Tensor
    ) -> tuple[Tensor | None, ...]:
        if call.backend == "cpu" and runs_directly(x, u0, v, a):
            scan = Scan(dense_steps(x), _start(u0, x), v, a, call)
            out, u, m, active = forward_with_notes(scan, wanted_words(scan, any(ctx.needs_input_grad)), ctx)
        else:
            options = {"membrane": call.membrane, "channelwise": call.channelwise, "backend": call.backend}
            out, u, m, active = lif_scan(x, u0, v, a, spec, **options)  # type: ignore[arg-type]
        ctx.spec, ctx.call, ctx.steps = spec, call, x.shape[0]
        ctx.stride = (x[0].numel(), *torch.empty_like(x[0], device="meta").stride())
        ctx.save_for_backward(u0, v, a, *(t for term in terms for t in term.tensors()))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(active)
        return out, u, out.new_empty(0) if m is None else m, active

    @staticmethod
    def backward(ctx: Any, g_out: Tensor | None, g_u: Tensor | None, g_m: Tensor | None, _: Any) -> tuple[Any, ...]:
        g_m = g_m if ctx.call.membrane else None
        if g_out is None and g_u is None and g_m is None:
            return (None,) * len(ctx.needs_input_grad)
        u0, v, a, *flat = ctx.saved_tensors
        with torch.no_grad():
            dx, *others = _gradients(ctx.spec, ctx.call, ctx.steps, (g_out, g_u, g_m), _terms(tuple(flat)), u0, v, a)
            if dx.stride() != ctx.stride:
                # The same strides as from the plain scan: torch's batch norm treats equivalent strides differently.
                dx = torch.empty_strided(dx.shape, ctx.stride, dtype=dx.dtype, device=dx.device).copy_(dx)
        grads = [dx, *others]
        return None, None, None, *once(grads, NOT_TWICE, g_out, g_u, g_m, u0, v, a, *flat)


def _start(u0: Tensor, x: Tensor) -> Tensor:
    """u0 in the layout that the kernels need."""
    return u0 if u0.ndim < 2 else like_step(u0, x)


def _gradients(
    spec: ScanSpec,
    call: Call,
    steps: int,
    grads: tuple[Tensor | None, ...],
    terms: tuple[Term, ...],
    *parameters: Tensor,
) -> Results:
    """The gradients of the current, u0, v and a. The C++ kernel computes the current while it reads its terms."""
    u0, v, a = parameters
    fused = affine_of(terms, steps) if call.backend == "cpu" else None
    if fused is not None:
        x, affine = fused
        numbers = (call.codes, call.constants)
        dx, du0, dv, da = current_scan_backward_op(*grads, x, _start(u0, x), v, a, *affine[:4], *numbers)
        return dx, du0.sum_to_size(u0.shape), dv, da
    x = current(terms, steps)
    if call.backend != "reference":
        dx, du0, dv, da = lif_scan_backward_op(*grads, x, _start(u0, x), v, a, *call)
        return dx, du0.sum_to_size(u0.shape), dv, da
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, u0, v, a)]
        x, u0, v, a = leaves
        out, u, m, _ = reference_scan(x, u0, v, a, spec, membrane=call.membrane)
        pairs = [(o, g) for o, g in zip((out, u, m), grads) if o is not None and g is not None]
        got = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(got, leaves))  # type: ignore[return-value]


def scan_terms(
    x: Tensor, terms: tuple[Term, ...], u0: Tensor, v: Tensor, a: Tensor, spec: ScanSpec, call: Call
) -> ScanResult:
    """`lif_scan` of ``x``, the sum of ``terms``; keeps the terms for the backward instead of ``x``."""
    dtype = compute_dtype(x)
    u0, v, a = (p.to(dtype).contiguous() for p in (u0, v, a))
    out, u, m, active = _Scan.apply(spec, call, terms, x, u0, v, a)
    return ScanResult(out, u, m if call.membrane else None, active)

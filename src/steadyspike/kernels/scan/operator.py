"""The LIF scan as a PyTorch operator: schema, fake kernel, autograd; a `Backend` does the work.

As an operator it is one node for ``torch.compile`` and export. Its backward recomputes the membrane from x, so nothing
of size T is saved beyond the input. Devices other than the CPU use it in eager calls too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadyspike.kernels.layout import channel_count, compute_dtype, dense_steps, empty_steps, laid_out_like
from steadyspike.kernels.scan.arguments import check_contract
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Call, Gradients, OutputGradients, Results, Scan

NOT_TWICE = (
    "the compiled scan has first derivatives only and cannot be differentiated twice; for second derivatives use "
    "backend='reference'"
)
_TENSORS = "Tensor x, Tensor u0, Tensor v, Tensor a"
_CALL = "int[] codes, float[] constants, bool membrane, bool channelwise, str backend"  # the fields of Call
_GRADIENTS = "Tensor? g_out, Tensor? g_u, Tensor? g_m"
_RESULTS = "(Tensor, Tensor, Tensor, Tensor)"


def _checked(x: Tensor, u0: Tensor, v: Tensor, a: Tensor, *call: Any) -> Scan:
    """Builds the scan from the operator's flat arguments, checked and dense: a user may call an operator directly."""
    x = dense_steps(x)
    check_contract(x, u0, v, a, compute_dtype(x))
    codes, constants, *others = call
    return Scan(x, u0, v, a, Call(tuple(codes), tuple(constants), *others))


def _forward(*args: Any) -> Results:
    scan = _checked(*args)
    out, u, m, active = get_backend(scan.call.backend).forward(scan)
    assert u is not None
    return out, u, u.new_empty((0,)) if m is None else m, active  # an operator returns tensors


def _backward(g_out: Tensor | None, g_u: Tensor | None, g_m: Tensor | None, *args: Any) -> Results:
    scan = _checked(*args)
    return without_none(get_backend(scan.call.backend).backward(scan, gradients_like(scan.x, g_out, g_u, g_m)))


def without_none(gradients: Gradients) -> Results:
    """Returns the same results, as if all were requested."""
    dx, du0, dv, da = gradients
    assert du0 is not None and dv is not None and da is not None
    return dx, du0, dv, da


lif_scan_op = torch.library.custom_op(
    "steadyspike::lif_scan", _forward, mutates_args=(), schema=f"({_TENSORS}, {_CALL}) -> {_RESULTS}"
)
lif_scan_backward_op = torch.library.custom_op(
    "steadyspike::lif_scan_backward",
    _backward,
    mutates_args=(),
    schema=f"({_GRADIENTS}, {_TENSORS}, {_CALL}) -> {_RESULTS}",
)


def refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(NOT_TWICE)


lif_scan_backward_op.register_autograd(refuse)


@lif_scan_op.register_fake
def _(x: Tensor, u0: Tensor, v: Tensor, a: Tensor, *call: Any) -> Results:
    dtype, options = compute_dtype(x), Call(*call)
    m = empty_steps(x, dtype) if options.membrane else x.new_empty((0,), dtype=dtype)
    active = x.new_empty((2, channel_count(x) if options.channelwise else 1), dtype=torch.float64)
    return empty_steps(x, x.dtype), torch.empty_like(x[0], dtype=dtype), m, active


@lif_scan_backward_op.register_fake
def _(g_out: Any, g_u: Any, g_m: Any, x: Tensor, u0: Tensor, v: Tensor, a: Tensor, *call: Any) -> Results:
    return empty_steps(x, x.dtype), torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)


def gradients_like(x: Tensor, g_out: Tensor | None, g_u: Tensor | None, g_m: Tensor | None) -> OutputGradients:
    """Returns the gradients into out, U[T] and M, with the layout of a dense x."""
    dtype = compute_dtype(x)
    return OutputGradients(
        None if g_out is None else laid_out_like(g_out, x, x.dtype),
        None if g_u is None else laid_out_like(g_u[None], x[:1], dtype)[0],
        None if g_m is None else laid_out_like(g_m, x, dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.call = Call(*inputs[4:])
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])


def _operator_backward(ctx: Any, g_out: Any, g_u: Any, g_m: Any, _: Any) -> tuple[Any, ...]:
    none = (None,) * len(Call._fields)
    g_m = g_m if ctx.call.membrane else None
    if g_out is None and g_u is None and g_m is None:
        return (None,) * 4 + none
    return (*lif_scan_backward_op(g_out, g_u, g_m, *ctx.saved_tensors, *ctx.call), *none)


lif_scan_op.register_autograd(_operator_backward, setup_context=_setup_context)

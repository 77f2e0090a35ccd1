"""The LIF scan as a PyTorch operator: schema, fake kernel, autograd; the work is done by a `Backend`.

As an operator it is one node for ``torch.compile`` and export, and its backward recomputes the membrane from x: nothing
of size T is saved beyond the input. An ordinary eager call (`eager.py`) does the same without the operator's dispatch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from steadyspike.kernels.eager import is_ordinary
from steadyspike.kernels.layout import channel_count, compute_dtype, dense_steps, empty_steps, laid_out_like, like_step
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.arguments import check_contract
from steadyspike.kernels.scan.choose import get_backend

Results = tuple[Tensor, Tensor, Tensor, Tensor]
NOT_TWICE = "the compiled scan cannot be differentiated twice; for gradients of gradients use backend='reference'"


@torch.library.custom_op("steadyspike::lif_scan", mutates_args=())
def lif_scan_op(
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
    membrane: bool,
    channelwise: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = dense_steps(x)
    check_contract(x, u0, v, a, compute_dtype(x))
    return get_backend(backend).forward(x, u0, v, a, codes, constants, membrane, channelwise)


@lif_scan_op.register_fake
def _(
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
    membrane: bool,
    channelwise: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = compute_dtype(x)
    m = empty_steps(x, dtype) if membrane else x.new_empty((0,), dtype=dtype)
    active = x.new_empty((2, channel_count(x) if channelwise else 1), dtype=torch.float64)
    return empty_steps(x, x.dtype), torch.empty_like(x[0], dtype=dtype), m, active


def _gradients_like(
    x: Tensor, g_out: Tensor | None, g_u: Tensor | None, g_m: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients into out, U[T] and M, laid out like a dense x."""
    dtype = compute_dtype(x)
    return (
        None if g_out is None else laid_out_like(g_out, x, x.dtype),
        None if g_u is None else laid_out_like(g_u[None], x[:1], dtype)[0],
        None if g_m is None else laid_out_like(g_m, x, dtype),
    )


@torch.library.custom_op("steadyspike::lif_scan_backward", mutates_args=())
def lif_scan_backward_op(
    g_out: Tensor | None,
    g_u: Tensor | None,
    g_m: Tensor | None,
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = dense_steps(x)
    check_contract(x, u0, v, a, compute_dtype(x))
    return get_backend(backend).backward(*_gradients_like(x, g_out, g_u, g_m), x, u0, v, a, codes, constants)


@lif_scan_backward_op.register_fake
def _(
    g_out: Tensor | None,
    g_u: Tensor | None,
    g_m: Tensor | None,
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return empty_steps(x, x.dtype), torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, u0, v, a, codes, constants, membrane, _, backend = inputs
    ctx.save_for_backward(x, u0, v, a)
    ctx.codes, ctx.constants, ctx.membrane, ctx.backend = codes, constants, membrane, backend
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])


def _backward(ctx, g_out, g_u, g_m, g_active):  # type: ignore[no-untyped-def]
    if g_out is None and g_u is None and (g_m is None or not ctx.membrane):
        return (None,) * 9
    x, u0, v, a = ctx.saved_tensors
    g_m = g_m if ctx.membrane else None
    dx, du0, dv, da = lif_scan_backward_op(g_out, g_u, g_m, x, u0, v, a, ctx.codes, ctx.constants, ctx.backend)
    return dx, du0, dv, da, None, None, None, None, None


lif_scan_op.register_autograd(_backward, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The operator without its dispatch, for arguments that `lif_scan` has checked and laid out."""

    @staticmethod
    def forward(ctx, x, u0, v, a, codes, constants, membrane, channelwise, backend):  # type: ignore[no-untyped-def]
        results = get_backend(backend).forward(dense_steps(x), u0, v, a, codes, constants, membrane, channelwise)
        _setup_context(ctx, (x, u0, v, a, codes, constants, membrane, channelwise, backend), results)
        return results

    @staticmethod
    def backward(ctx, g_out, g_u, g_m, g_active):  # type: ignore[no-untyped-def, override]
        if g_out is None and g_u is None and (g_m is None or not ctx.membrane):
            return (None,) * 9
        saved = ctx.saved_tensors  # read once: activation checkpointing gives them out once
        g_m = g_m if ctx.membrane else None
        if is_ordinary(*(t for t in (g_out, g_u, g_m, *saved) if t is not None)):
            x, u0, v, a = _laid_out_again(*saved)
            gradients = _gradients_like(x, g_out, g_u, g_m)
            grads = get_backend(ctx.backend).backward(*gradients, x, u0, v, a, ctx.codes, ctx.constants)
        else:  # batched gradients, for instance
            grads = lif_scan_backward_op(g_out, g_u, g_m, *saved, ctx.codes, ctx.constants, ctx.backend)
        return (*once(grads, NOT_TWICE, g_out, g_u, g_m, *saved), None, None, None, None, None)


def _laid_out_again(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What was saved, laid out as a backend expects it: a saved-tensor hook may have returned it in another way."""
    x, v, a = dense_steps(x.detach()), v.detach().contiguous(), a.detach().contiguous()
    u0 = u0.detach()
    u0 = like_step(u0, x) if u0.shape == x.shape[1:] and u0.numel() > 1 else u0.contiguous()
    check_contract(x, u0, v, a, compute_dtype(x))
    return x, u0, v, a


def scan_function(*tensors: Tensor) -> Callable[..., Results]:
    """`lif_scan_op`, or the same without the operator's dispatch where nothing has to see it."""
    return _Direct.apply if is_ordinary(*tensors) else lif_scan_op

"""An operator for the backward of a LIF scan whose input current is scale x + shift, plus an optional second term.

The C++ kernel computes the current while it reads x, so the current is never written to memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadyspike.kernels.layout import compute_dtype, empty_steps, is_dense, same_strides
from steadyspike.kernels.scan.arguments import check_contract
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Affine, Call, Results, Scan
from steadyspike.kernels.scan.operator import gradients_like, without_none
from steadyspike.nn.memory.current import Term


def affine_of(terms: tuple[Term, ...], steps: int) -> tuple[Tensor, Affine] | None:
    """(x, affine) for the C++ kernel, with the sum of ``terms`` as current; None if the kernel cannot compute it.

    The kernel does not take half precision: ordinary layers round the current to it, and the kernel does not.
    """
    first, *others = sorted(terms, key=lambda term: not term.normed)
    x, scale, shift = first.tensors()
    assert x is not None
    if scale is None or shift is None or x.dtype not in (torch.float32, torch.float64):
        return None
    if x.numel() == 0 or not is_dense(x[0]):
        return None
    if any(not same_strides(term.y[0], x[0]) or term.y.dtype != x.dtype for term in others):
        return None
    x = _repeated(x, steps)
    if not others:
        scale, shift = _cast(x, scale, shift)
        return x, Affine(scale, shift)
    extra, extra_scale, extra_shift = others[0].tensors()
    assert extra is not None
    if extra_scale is not None and extra_shift is not None:
        shift = shift + extra_shift
        (extra_scale,) = _cast(x, extra_scale)
    scale, shift = _cast(x, scale, shift)
    return x, Affine(scale, shift, _repeated(extra, steps), extra_scale)


def _repeated(y: Tensor, steps: int) -> Tensor:
    return y if y.shape[0] == steps else y.expand(steps, *y.shape[1:])


def _cast(x: Tensor, *constants: Tensor) -> list[Tensor]:
    return [c.to(x.dtype).contiguous() for c in constants]


def _checked(x: Tensor, affine: Affine, u0: Tensor, v: Tensor, a: Tensor) -> Affine:
    """Checks all tensors, because the kernel gets bare pointers to them."""
    check_contract(x, u0, v, a, compute_dtype(x))
    for name in ("scale", "shift", "extra_scale"):
        c = getattr(affine, name)
        if c is None:
            continue
        if c.shape != x.shape[2:3] or c.dtype != x.dtype or c.device != x.device or not c.is_contiguous():
            raise ValueError(f"{name} must be [{x.shape[2]}] in {x.dtype} on {x.device}, got {list(c.shape)} {c.dtype}")
    extra = affine.extra
    if extra is not None and (
        extra.shape != x.shape or extra.dtype != x.dtype or extra.device != x.device or not same_strides(extra[0], x[0])
    ):
        raise ValueError(f"extra must be like x in shape, dtype, device and memory order, got {list(extra.shape)}")
    return affine


def _backward(*args: Any) -> Results:
    g_out, g_u, g_m, x, u0, v, a, *affine, codes, constants = args
    scan = Scan(x, u0, v, a, Call(tuple(codes), tuple(constants)), _checked(x, Affine(*affine), u0, v, a))
    return without_none(get_backend("cpu").backward(scan, gradients_like(x, g_out, g_u, g_m)))


current_scan_backward_op = torch.library.custom_op(
    "steadyspike::current_scan_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor? g_out, Tensor? g_u, Tensor? g_m, Tensor x, Tensor u0, Tensor v, Tensor a, Tensor scale, "
    "Tensor shift, Tensor? extra, Tensor? extra_scale, int[] codes, float[] constants) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)


@current_scan_backward_op.register_fake
def _(g_out: Any, g_u: Any, g_m: Any, x: Tensor, u0: Tensor, v: Tensor, a: Tensor, *rest: Any) -> Results:
    return empty_steps(x, x.dtype), torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)

"""The backward of the LIF scan of an affine map of x as an operator, for the C++ kernel: it works the current out as it
reads x, so that the current is not in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.kernels.layout import compute_dtype, empty_steps, is_dense, laid_out_like, same_strides
from steadyspike.kernels.scan.arguments import check_contract
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Affine
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn.memory.current import Term


def affine_of(terms: tuple[Term, ...], steps: int) -> tuple[Tensor, Affine] | None:
    """(x, affine) with the same current as the sum of ``terms``, if the C++ kernel takes it: else None.

    Half precision is not taken, because the plain layers round the current to it.
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


def _backend() -> CpuBackend:
    backend = get_backend("cpu")
    assert isinstance(backend, CpuBackend)
    return backend


def _checked(x: Tensor, affine: Affine, u0: Tensor, v: Tensor, a: Tensor) -> Affine:
    """Nothing wrong may reach a kernel that gets pointers."""
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


@torch.library.custom_op("steadyspike::current_scan_backward", mutates_args=())
def current_scan_backward_op(
    g_out: Tensor | None,
    g_u: Tensor | None,
    g_m: Tensor | None,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    extra: Tensor | None,
    extra_scale: Tensor | None,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    affine = _checked(x, Affine(scale, shift, extra, extra_scale), u0, v, a)
    g_out, g_m = (None if g is None else laid_out_like(g, x, x.dtype) for g in (g_out, g_m))
    g_u = None if g_u is None else laid_out_like(g_u[None], x[:1], x.dtype)[0]
    return _backend().backward(g_out, g_u, g_m, x, u0, v, a, codes, constants, affine)


@current_scan_backward_op.register_fake
def _(
    g_out: Tensor | None,
    g_u: Tensor | None,
    g_m: Tensor | None,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    extra: Tensor | None,
    extra_scale: Tensor | None,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    codes: list[int],
    constants: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return empty_steps(x, x.dtype), torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)

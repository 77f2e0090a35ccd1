"""Norm and scan as PyTorch operators for a GPU: the current ``scale x + shift [+ extra]`` is never in memory.

There are two operators, with fake kernels and autograd; the Triton kernels do the work.

- `norm_moments`: mean and variance of a batch. Scale and shift are computed from them by a few ordinary operations
  on [C] (sums over processes, weight, bias), which autograd and compilers can process.
- `affine_scan`: the scan of the current. Its backward computes the current again from x.

The gradient of a norm's input has two parts: one through the current, and one through the moments. If autograd added
them, this would take three more passes over memory. `norm_moments` therefore also returns a **link**, a tensor of y's
shape with one element in memory. The backward of `affine_scan` gives the first part to the link. The backward of
`norm_moments` gets it from there and adds the second part in one pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.layout import channel_count, compute_dtype, empty_steps, is_dense, laid_out_like, like_step
from steadyspike.kernels.scan.arguments import check_contract
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Affine, Call, Results, Scan
from steadyspike.kernels.scan.operator import gradients_like, refuse

_TENSORS = (
    "Tensor x, Tensor u0, Tensor v, Tensor a, Tensor scale, Tensor shift, Tensor? extra, Tensor? extra_scale, "
    "Tensor? link, Tensor? extra_link"
)
_CALL = "int[] codes, float[] constants, bool membrane, bool channelwise, bool potential"
_COUNT = 10  # tensors


class NormedInput(NamedTuple):
    """The affine map of a norm's input x [T, B, C, ...]: scale x + shift, [C] or [T, C].

    link: that of `norm_moments`, for a norm in training
    """

    x: Tensor
    scale: Tensor
    shift: Tensor
    link: Tensor | None = None


def norm_scan(
    first: NormedInput,
    extra: Tensor | NormedInput | None,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    spec: ScanSpec,
    *,
    membrane: bool = False,
    channelwise: bool = False,
    potential: bool = False,
) -> ScanResult:
    """Runs the scan of the current ``first [+ extra]`` by the Triton kernels; u is empty unless ``potential``."""
    x, scale, shift, link = first
    dtype = compute_dtype(x)
    extra_scale = extra_link = None
    if isinstance(extra, NormedInput):
        extra, extra_scale, extra_shift, extra_link = extra
        shift = shift + extra_shift
    u0 = u0.to(dtype)
    u0 = like_step(u0, one_block(x)) if u0.ndim > 1 or u0.shape == x.shape[1:] else u0.contiguous()
    constants = (c.to(dtype).contiguous() for c in (v, a, scale, shift))
    extra_scale = None if extra_scale is None else extra_scale.to(dtype).contiguous()
    # Gradients into x go through the link, which adds both parts in one pass; autograd must not add them again.
    if link is not None:
        x = x.detach()
    if extra_link is not None:
        assert extra is not None
        extra = extra.detach()
    tensors = (x, u0, *constants, extra, extra_scale, link, extra_link)
    out, u, m, active = affine_scan_op(*tensors, spec.codes, spec.constants, membrane, channelwise, potential)
    return ScanResult(out, u, m if membrane else None, active)


def one_block(x: Tensor) -> Tensor:
    """Returns ``x`` [T, B, ...] with dense steps that follow each other in memory; copied only if it is not."""
    if x.numel() == 0 or (is_dense(x[0]) and (x.stride(0) == x[0].numel() or x.shape[0] == 1)):
        return x
    return empty_steps(x, x.dtype).copy_(x)


def _triton() -> Any:
    return get_backend("triton")


class _Arguments(NamedTuple):
    scan: Scan
    link: Tensor | None
    extra_link: Tensor | None
    potential: bool


def _checked(*args: Any) -> _Arguments:
    """Returns the operator's flat arguments, dense and checked, because a user may call an operator directly."""
    x, u0, v, a, scale, shift, extra, extra_scale, link, extra_link = args[:_COUNT]
    codes, constants, membrane, channelwise, potential = args[_COUNT:]
    x, dtype = one_block(x), compute_dtype(x)
    check_contract(x, u0, v, a, dtype)
    channels = channel_count(x)
    for name, p in (("scale", scale), ("shift", shift), ("extra_scale", extra_scale)):
        if p is not None and (p.dtype != dtype or p.shape[-1] != channels or not p.is_contiguous()):
            raise ValueError(f"{name} must be a contiguous {dtype} with one value per channel ({channels})")
    for t in (scale, shift, extra, extra_scale):
        if t is not None and t.device != x.device:
            raise ValueError(f"the norm is on {t.device} but x is on {x.device}; move one of them")
    if scale.shape != shift.shape or (scale.ndim == 2 and len(scale) != len(x)):
        raise ValueError(f"scale and shift must be [C] or [T, C], got {list(scale.shape)} and {list(shift.shape)}")
    if extra_scale is not None and extra_scale.ndim != 1:
        raise ValueError(f"extra_scale must be [C], got {list(extra_scale.shape)}")
    extra = None if extra is None else laid_out_like(extra, x, x.dtype)
    affine = Affine(scale, shift, extra, extra_scale)
    call = Call(tuple(codes), tuple(constants), membrane, channelwise, "triton")
    return _Arguments(Scan(x, u0, v, a, call, affine), link, extra_link, potential)


def _forward(*args: Any) -> Results:
    scan, _, _, potential = _checked(*args)
    return _triton().forward(scan, potential=potential)


def _backward(g_out: Any, g_u: Any, g_m: Any, wants_extra: bool, *args: Any) -> tuple[Tensor, ...]:
    scan = _checked(*args).scan
    gradients = _triton().affine_backward(scan, gradients_like(scan.x, g_out, g_u, g_m), wants_extra)
    nothing = scan.x.new_empty((0,))
    # An operator must not return the same tensor twice.
    return tuple(nothing.clone() if g is None else g for g in gradients)


affine_scan_op = torch.library.custom_op(
    "steadyspike::affine_scan",
    _forward,
    mutates_args=(),
    schema=f"({_TENSORS}, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor)",
)
affine_scan_backward_op = torch.library.custom_op(
    "steadyspike::affine_scan_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor? g_out, Tensor? g_u, Tensor? g_m, bool wants_extra, {_TENSORS}, {_CALL}) -> "
    f"({', '.join(['Tensor'] * 8)})",
)
affine_scan_backward_op.register_autograd(refuse)


@affine_scan_op.register_fake
def _(*args: Any) -> Results:
    x, (membrane, channelwise, potential) = args[0], args[-3:]
    dtype = compute_dtype(x)
    u = torch.empty_like(x[0], dtype=dtype) if potential else x.new_empty((0,), dtype=dtype)
    m = empty_steps(x, dtype) if membrane else x.new_empty((0,), dtype=dtype)
    active = x.new_empty((2, channel_count(x) if channelwise else 1), dtype=torch.float64)
    return empty_steps(x, x.dtype), u, m, active


@affine_scan_backward_op.register_fake
def _(g_out: Any, g_u: Any, g_m: Any, wants_extra: bool, *args: Any) -> tuple[Tensor, ...]:
    x, u0, v, a, scale, shift, _, extra_scale = args[:8]
    dextra = empty_steps(x, x.dtype) if wants_extra else x.new_empty((0,))
    dextra_scale = x.new_empty((0,)) if extra_scale is None else torch.empty_like(extra_scale)
    return empty_steps(x, x.dtype), *(torch.empty_like(p) for p in (u0, v, a, scale, shift)), dextra, dextra_scale


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*inputs[: _COUNT - 2])
    ctx.call = inputs[_COUNT:]
    ctx.links = inputs[8] is not None, inputs[9] is not None
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])


def _gradients(ctx: Any, g_out: Any, g_u: Any, g_m: Any, _: Any) -> tuple[Any, ...]:
    _, _, membrane, _, potential = ctx.call
    none = (None,) * len(ctx.call)
    g_u, g_m = g_u if potential else None, g_m if membrane else None
    if g_out is None and g_u is None and g_m is None:
        return (None,) * _COUNT + none
    linked, extra_linked = ctx.links
    saved = ctx.saved_tensors  # read once: activation checkpointing returns saved tensors only once
    scale, _, extra, extra_scale = saved[4:]
    if scale.ndim == 2:
        raise RuntimeError("a scale per step has no gradient in the Triton kernels; compute norm and neuron separately")
    wants_extra = extra is not None and (ctx.needs_input_grad[9] if extra_linked else ctx.needs_input_grad[6])
    gradients = affine_scan_backward_op(g_out, g_u, g_m, wants_extra, *saved, None, None, *ctx.call)
    dx, du0, dv, da, dscale, dshift, dextra, dextra_scale = gradients
    dextra = dextra if wants_extra else None
    return (
        *(None if linked else dx, du0, dv, da, dscale, dshift),
        *(None if extra_linked else dextra, None if extra_scale is None else dextra_scale),
        *(dx if linked else None, dextra if extra_linked else None),
        *none,
    )


affine_scan_op.register_autograd(_gradients, setup_context=_setup)


def norm_moments(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (link, mean [C], biased variance [C]) of y [T, B, C, ...] over all axes but C.

    See the top of this file.
    """
    return norm_moments_op(y)


def _moments(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from steadyspike.kernels.scan.triton.norm_backend import batch_moments

    return _link(y), *batch_moments(one_block(y))


def _link(y: Tensor) -> Tensor:
    return y.new_zeros(()).expand(y.shape)


norm_moments_op = torch.library.custom_op(
    "steadyspike::norm_moments", _moments, mutates_args=(), schema="(Tensor y) -> (Tensor, Tensor, Tensor)"
)


@norm_moments_op.register_fake
def _(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(y)
    return _link(y), y.new_empty(y.shape[2], dtype=dtype), y.new_empty(y.shape[2], dtype=dtype)


def _moments_backward(g: Tensor, y: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    from steadyspike.kernels.scan.triton.norm_backend import BLOCK, norm_gradient_launch

    y = one_block(y)
    dy = empty_steps(y, y.dtype)
    g = one_block(laid_out_like(g, y, y.dtype))
    launch = norm_gradient_launch(g, y, slope, offset, dy)
    launch.run(y.device, BLOCK)
    return dy


norm_moments_backward_op = torch.library.custom_op(
    "steadyspike::norm_moments_backward",
    _moments_backward,
    mutates_args=(),
    schema="(Tensor g, Tensor y, Tensor slope, Tensor offset) -> Tensor",
)
norm_moments_backward_op.register_autograd(refuse)


@norm_moments_backward_op.register_fake
def _(g: Tensor, y: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    return empty_steps(y, y.dtype)


def _setup_moments(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.set_materialize_grads(False)


def _moments_gradient(ctx: Any, g: Any, g_mean: Any, g_var: Any) -> Any:
    """g comes through the current.

    Mean and variance are sums over n elements: dmean/dy = 1/n, dvar/dy = 2 (y - mean)/n.
    """
    y, mean = ctx.saved_tensors
    if g_mean is None and g_var is None:
        return g
    n = y.numel() // y.shape[2]
    g = torch.zeros_like(y) if g is None else g
    slope = torch.zeros_like(mean) if g_var is None else 2 / n * g_var
    offset = -slope * mean if g_mean is None else g_mean / n - slope * mean
    return norm_moments_backward_op(g, y, slope, offset)


norm_moments_op.register_autograd(_moments_gradient, setup_context=_setup_moments)

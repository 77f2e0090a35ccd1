"""The backward of the fused node (`fused.py`): the scan's gradients in one call of C++, then those of the norms.

If C++ cannot do something (batches of gradients, tensors that a saved-tensor hook returned in another layout), the
operator does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import laid_out_like, like_step
from steadyspike.kernels.scan.contract import NormSums
from steadyspike.kernels.scan.cpu.neuron_calls import RunConstants, neuron_backward
from steadyspike.kernels.scan.cpu.norm_gradient import norm_input_gradient, norm_sums
from steadyspike.kernels.scan.fused_job import Job, Statistics, current_map, layout, mapped, scales_of
from steadyspike.kernels.scan.operator import gradients_like, lif_scan_op
from steadyspike.kernels.spikes.packed import PackedSpikes

Into = tuple[Tensor | None, Tensor | None, Tensor | None]  # gradients into the node's outputs: out, U[T] and M


def fused_gradients(ctx: Any, grads: Into, saved: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
    """Returns the gradients of x, k, w, u0, weight, bias, extra, weight2 and bias2, as many as the node has inputs."""
    job: Job = ctx.job
    v, a = job.computed
    g, g_u, g_m = grads
    u0 = weight = kept = weight2 = None
    if len(saved) == 3:
        x, k, w = saved
        fits = True
    else:
        x, k, w, u0, weight, _, kept, weight2, _ = saved
        x = job.at_every_step(x)
        fits = (layout(u0), layout(kept)) == job.layout
    v, a = k if v is None else v, w if a is None else a
    # The usual layer has only g and three saved tensors; a short call is faster than collecting the others.
    if g is None or g_u is not None or g_m is not None or len(saved) > 3:
        fits = fits and runs_directly(*(t for t in (*grads, *saved) if t is not None))
    else:
        fits = runs_directly(g, x, k, w)
    # A saved-tensor hook may have returned a tensor in another layout.
    if not (fits and (x.shape, x.stride(), x.dtype) == job.x_memory and _is_like(k, v) and _is_like(w, a)):
        return _by_operator(job, grads, saved)
    if g_u is not None or g_m is not None:
        grads = gradients_like(x, g, g_u, g_m)
    elif g is not None and (g.shape, g.stride(), g.dtype) != job.x_memory:
        grads = laid_out_like(g, x, x.dtype), None, None
    to_v, to_a = job.links
    constants = v, a, None if to_v is None else k, None if to_a is None else w
    wants = ctx.needs_input_grad  # job, x, k, w, u0, ...
    needs = (u0 is not None and wants[4], wants[2], wants[3])
    start = job.memory if u0 is None else u0
    if weight is not None:
        return _with_norms(job, grads, x, constants, start, needs, kept, weight2)
    dx, du0, dk, dw = neuron_backward(job.plan, x, constants, start, grads, needs)
    return (dx, dk, dw) if u0 is None else (dx, dk, dw, du0)


def _with_norms(
    job: Job,
    grads: Into,
    x: Tensor,
    constants: RunConstants,
    start: Any,
    needs: Sequence[bool],
    kept: Tensor | None,
    weight2: Tensor | None,
) -> Sequence[Tensor | None]:
    """Does the same as `fused_gradients` with a norm.

    kept: extra, or its bits
    """
    statistics, scale = job.norms[0], job.scales[0]
    # The scan sums g (x - mean) instead of g x, which would lose digits if the mean is large.
    center = torch.zeros_like(scale) if statistics is None else statistics.mean
    sums = NormSums(center, center.new_empty((2, len(center)), dtype=torch.float64))
    extra, words = (kept, None) if job.like is None else (None, kept)
    affine = current_map(job, extra, words)
    current, du0, dk, dw = neuron_backward(job.plan, x, constants, start, grads, needs, affine, sums)
    by_extra: Tensor | None = None if kept is None else current
    by_second: tuple[Tensor | None, ...] = (None, None)
    if weight2 is not None and kept is not None:
        assert job.norms[1] is not None
        by_extra, *by_second = _second_norm(job.norms[1], current, kept, weight2, sums.sums[0])  # type: ignore[assignment]
    if job.repeated:
        x, current = x[:1], _over_steps(current)
    # The gradient of the current may be overwritten, unless it is also the gradient of extra.
    dx, dweight, dbias = _by_norm(statistics, current, x, scale, sums.sums, reuse=by_extra is not current)
    return dx, dk, dw, du0, dweight, dbias, by_extra, *by_second


def _over_steps(g: Tensor) -> Tensor:
    """Returns the sum over the steps of a dense ``g`` [T, ...], as [1, ...] in the same memory order."""
    steps, n = g.shape[0], g[0].numel()
    return g.as_strided((steps, n), (n, 1)).sum(0).as_strided(g[:1].shape, g.stride())


def _is_like(raw: Tensor, constant: Tensor) -> bool:
    """Returns True if C++ can read ``raw`` in the same way as the constant computed from it."""
    return raw.dtype == constant.dtype and raw.shape == constant.shape and raw.is_contiguous()


def _by_norm(
    statistics: Statistics | None, g: Tensor, x: Tensor, scale: Tensor, sums: Tensor, *, reuse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients by x, weight and bias from that of the current.

    sums: of g and of g (x - mean)
    reuse: write the result to the memory of g
    """
    if statistics is None:
        by_bias, by_weight = sums
        dx = g * per_channel(scale, x.ndim - 1)
        return dx, by_weight.to(x.dtype), by_bias.to(x.dtype)
    return norm_input_gradient(g, x, sums, *statistics, scale, reuse=reuse)


def _second_norm(
    statistics: Statistics, g: Tensor, x: Tensor, weight: Tensor, by_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by x, weight and bias of a norm of ``x`` [T, B, C, ...] whose output has the gradient ``g``.

    by_bias: the sum of g per channel
    """
    same_memory = x.stride() == g.stride() and (x.dtype, statistics.mean.dtype) == (g.dtype, g.dtype)
    by_weight = norm_sums(g, x, statistics.mean) if same_memory else None
    if by_weight is not None:
        scale = weight * statistics.invstd
        return _by_norm(statistics, g, x, scale, torch.stack((by_bias, by_weight)), reuse=False)
    folded = (g.flatten(0, 1), x.flatten(0, 1), weight, None, None, statistics.mean, statistics.invstd)
    dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(*folded, True, 0.0, [True] * 3)
    return dx.unflatten(0, x.shape[:2]), dweight, dbias


def _by_operator(job: Job, grads: Into, saved: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Does the same as `fused_gradients` by autograd and the scan's operator, which accept all tensors."""
    kept = [*saved, *[None] * (9 - len(saved))]
    if job.like is not None and kept[6] is not None:
        # The forward kept an `extra` of spikes as bits; the operators need values.
        kept[6] = PackedSpikes(kept[6], *job.like).unpack()
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in kept]
        x, k, w, u0, weight, bias, extra, weight2, bias2 = leaves
        assert x is not None and k is not None and w is not None
        current = x = job.at_every_step(x)
        if weight is not None and bias is not None:
            parts = zip(job.norms, (x, extra))
            first, second = (None if norm is None or y is None else norm.followed(y) for norm, y in parts)
            current = mapped(x, scales_of((first, second), weight, bias, weight2, bias2), extra)
        v, a = (raw if link is None else link.value(raw) for link, raw in zip(job.links, (k, w)))
        u0 = job.u0(current) if u0 is None else u0
        u0 = like_step(u0, current) if u0.shape == current.shape[1:] and u0.numel() > 1 else u0.contiguous()
        results = lif_scan_op(current, u0, v.contiguous(), a.contiguous(), *job.plan.call)
    outputs, into = zip(*((result, g) for result, g in zip(results, grads) if g is not None))
    inputs = [t for t in leaves if t is not None]
    by_inputs = iter(torch.autograd.grad(outputs, inputs, into, allow_unused=True))
    return [None if t is None else next(by_inputs) for t in leaves[: max(3, len(saved))]]

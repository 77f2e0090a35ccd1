"""A layer's whole forward as one autograd node and one call of C++: U[0], the scan, and the step of MP-Init's mean.

It computes what `InitialPotential.potential`, `layer_scan` and `InitialPotential.update` compute one after the other,
for layers whose U[0] is MP-Init's mean or a number, where nobody looks at U[0], U[T] or M. On a small layer, operators
on single numbers and tensors that hold them take longer than the scan.
"""

from __future__ import annotations

from ctypes import Array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadyspike.core.torch_private import apply_directly, dispatch_modes, unwrapped
from steadyspike.kernels.eager import is_ordinary
from steadyspike.kernels.layout import are_dense_steps, laid_out_like
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.arguments import check_shapes
from steadyspike.kernels.scan.choose import choose_directly
from steadyspike.kernels.scan.contract import Call, Gradients
from steadyspike.kernels.scan.cpu.neuron_calls import (
    LinkRange,
    NeuronPlan,
    RunConstants,
    Start,
    neuron_backward,
    neuron_forward,
    neuron_plan,
    start_tensor,
    why_no_neuron_calls,
)
from steadyspike.kernels.scan.noted import note_words, words_for
from steadyspike.kernels.scan.operator import NOT_TWICE, direct_gradients
from steadyspike.nn.layer_scan import COMPUTED_IN
from steadyspike.nn.parametrization import LEAST_SLOPE, Link

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron


_FIXED = LinkRange()


class _Run:
    """One run of a layer. links: of V and of 1/tau, None for a constant that is fixed. trained: gradients are enabled.

    x_memory: shape, strides and dtype of x. Known after the forward: memory, with U[0]; computed: those of V and a that
    are computed; inside: whether the parameters were in their ranges.
    """

    __slots__ = ("computed", "inside", "links", "memory", "plan", "start", "trained", "x_memory")

    def __init__(
        self, plan: NeuronPlan, start: Start, links: tuple[Link | None, Link | None], x_memory: tuple[object, ...]
    ) -> None:
        self.plan, self.start, self.links, self.x_memory = plan, start, links, x_memory
        self.trained = torch.is_grad_enabled()
        self.memory: Array[Any] = plan.memory()
        self.computed: tuple[Tensor | None, Tensor | None] = (None, None)
        self.inside = True


class _LayerForward(torch.autograd.Function):
    """out of x and the raw parameters, or the constants themselves where they are fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, w: Tensor, run: _Run) -> Tensor:
        to_v, to_a = run.links
        plan, memory = run.plan, run.memory
        v = k if to_v is None else to_v.forward(k)
        a = w if to_a is None else to_a.forward(w)
        words = words_for(x, run.trained and any(ctx.needs_input_grad), plan.call) if plan.scan.bits else None
        raws = 0 if to_v is None else k.data_ptr(), 0 if to_a is None else w.data_ptr()
        out = neuron_forward(plan, x, RunConstants(v, a, *raws), run.start, memory, words)
        if out is None:
            run.inside = False
            v = v if to_v is None else to_v.limited(k)
            a = a if to_a is None else to_a.limited(w)
            out = neuron_forward(plan, x, RunConstants(v, a, 0, 0), run.start, memory, words)
            assert out is not None
        if words is not None:
            note_words(plan.call, v, words, out, ctx, to_v is not None)
        # V and a that were computed here are nobody else's. Fixed ones are k and w: saved, torch notices their changes.
        run.computed = None if to_v is None else v, None if to_a is None else a
        ctx.run = run
        ctx.save_for_backward(x, k, w)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
        if g is None:
            return (None,) * 4
        saved = ctx.saved_tensors  # read once: activation checkpointing gives them out once
        if not torch.is_grad_enabled():
            dx, _, dk, dw = _gradients(ctx, g, *saved)
            return dx, dk, dw, None
        with torch.no_grad():
            dx, _, dk, dw = _gradients(ctx, g, *saved)
        return *once((dx, dk, dw), NOT_TWICE, g, *saved), None


_forward_as_one = apply_directly(_LayerForward)


def _gradients(ctx: Any, g: Tensor, x: Tensor, k: Tensor, w: Tensor) -> Gradients:
    """Those of x, None, and those of k and w."""
    run: _Run = ctx.run
    plan, (to_v, to_a), (v, a) = run.plan, run.links, run.computed
    _, wants_k, wants_w, _ = ctx.needs_input_grad
    v, a = k if v is None else v, w if a is None else a
    x_memory = x.shape, x.stride(), x.dtype
    # A saved-tensor hook may have returned a tensor in another way than it was.
    if x_memory == run.x_memory and _is_like(k, v) and _is_like(w, a) and is_ordinary(g, x, k, w):
        if (g.shape, g.stride(), g.dtype) != x_memory:
            g = laid_out_like(g, x, x.dtype)
        raws = 0 if to_v is None else k.data_ptr(), 0 if to_a is None else w.data_ptr()
        return neuron_backward(plan, x, RunConstants(v, a, *raws), run.memory, g, wants_k, wants_w)
    dx, _, dv, da = direct_gradients(plan.call, (g, None, None), (x, start_tensor(plan, run.memory), v, a))
    if to_v is not None:
        dv = to_v.pulled_back(dv, k, v)
    if to_a is not None:
        da = to_a.pulled_back(da, w, a)
    return dx, None, dv, da


def _is_like(raw: Tensor, constant: Tensor) -> bool:
    """True if C++ can read ``raw`` as it reads the constant that was computed from it."""
    return raw.dtype == constant.dtype and raw.shape == constant.shape and raw.is_contiguous()


@lru_cache(maxsize=4096)
def _plan(
    x_memory: tuple[Any, ...],
    k: torch.Size,
    w: torch.Size,
    mean: torch.Size | None,
    codes: tuple[int, ...],
    constants: tuple[float, ...],
    channels: int | None,
    ranges: tuple[LinkRange, LinkRange],
) -> NeuronPlan | None:
    """None where these calls do not fit; checks the shapes."""
    x, strides, dtype = x_memory
    u0 = torch.Size([1]) if mean is None else mean
    check_shapes(x, dtype, u0, k, w)
    known = all(r.code >= 0 for r in ranges) and why_no_neuron_calls() is None
    if not known or x.numel() == 0 or not are_dense_steps(x, strides):
        return None
    if mean is not None and mean != (channels or 1,):
        return None
    call = Call(codes, constants, False, channels is not None)
    return neuron_plan(x, strides, dtype, call, (u0.numel(), k.numel(), w.numel()), ranges, LEAST_SLOPE)


def layer_forward(layer: Neuron, x: Tensor, start: Start) -> Tensor | None:
    """The output of ``layer``, whose V and 1/tau are its constants; None where the parts have to run one by one."""
    k, to_v = layer.raw_constant("threshold")
    w, to_a = layer.raw_constant("leak")
    mean, dtype, spec = start.mean, COMPUTED_IN.get(x.dtype), layer.spec
    if dispatch_modes() or not (x.is_cpu and k.is_cpu and w.is_cpu) or k.dtype != dtype or w.dtype != dtype:
        return None
    if mean is None:
        if not is_ordinary(x, k, w):
            return None
    elif mean.dtype != dtype or not (mean.is_cpu and mean.is_contiguous() and is_ordinary(x, k, w, mean)):
        return None
    if choose_directly(layer.backend, x.dtype, spec) != "cpu":
        return None
    x = unwrapped(x)
    x_memory = x.shape, x.stride(), x.dtype
    ranges = _FIXED if to_v is None else to_v.native, _FIXED if to_a is None else to_a.native
    shape = None if mean is None else mean.shape
    plan = _plan(x_memory, k.shape, w.shape, shape, spec.codes, spec.constants, layer.channels, ranges)
    if plan is None:
        return None
    run = _Run(plan, start, (to_v, to_a), x_memory)
    out = _forward_as_one(x, unwrapped(k).contiguous(), unwrapped(w).contiguous(), run)
    if not run.inside and layer.training:
        layer.limit_constants()
    return out

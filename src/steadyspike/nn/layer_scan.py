"""A layer's scan as one autograd node: from the input and the raw parameters of V and 1/tau to the output.

It computes what `Neuron.threshold`, `Neuron.leak` and `lif_scan` compute one after the other, with the same operations,
but autograd sees one function instead of three: on a small layer the calls take longer than the arithmetic.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.torch_private import apply_directly, unwrapped
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import DTYPES, are_dense_steps, dense_steps, laid_out_like, like_step
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.arguments import check_shapes
from steadyspike.kernels.scan.choose import choose_directly, get_backend
from steadyspike.kernels.scan.contract import Call, Gradients, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.cpu.scan_plan import ScanPlan, plan_for
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.kernels.scan.operator import NOT_TWICE, direct_gradients
from steadyspike.nn.parametrization import Link

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron


_NOT_WANTED = torch.empty(0)
_INSIDE = (True, True)
COMPUTED_IN = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}


class _Run:
    """One run of a layer. links: of V and of 1/tau, None for a constant that is fixed. inside: whether each parameter
    is known to be in its range. trained: gradients are enabled. potential: U[T] is wanted.

    memory: how x and u0 lie in memory. plan: None where x has to be copied first. active, computed: once known,
    MP-Init's statistics, and those of V and a that are computed.
    """

    __slots__ = ("active", "call", "computed", "inside", "links", "memory", "plan", "potential", "trained")

    def __init__(
        self,
        links: tuple[Link | None, Link | None],
        inside: tuple[bool, bool],
        memory: tuple[object, ...],
        common: tuple[Call, ScanPlan | None],
        potential: bool,
    ) -> None:
        self.links, self.inside, self.memory, self.potential = links, inside, memory, potential
        self.call, self.plan = common
        self.trained = torch.is_grad_enabled()
        self.active: Tensor | None = None
        self.computed: tuple[Tensor | None, Tensor | None] = (None, None)


class _LayerScan(torch.autograd.Function):
    """out, or (out, U[T], M), of x, u0 and the raw parameters, or the constants themselves where they are fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u0: Tensor, k: Tensor, w: Tensor, run: _Run) -> Any:
        (to_v, to_a), (v_inside, a_inside), plan = run.links, run.inside, run.plan
        v = k if to_v is None else to_v.forward(k) if v_inside else to_v.limited(k)
        a = w if to_a is None else to_a.forward(w) if a_inside else to_a.limited(w)
        scan = Scan(dense_steps(x) if plan is None else x, u0, v, a, run.call)
        words = None
        if plan is None or plan.bits:
            words = wanted_words(scan, run.trained and any(ctx.needs_input_grad), plan)
        if words is None:
            out, u, m, run.active = _backend().forward(scan, potential=run.potential, plan=plan)
        else:
            out, u, m, run.active = forward_with_notes(
                scan, words, ctx, potential=run.potential, plan=plan, own_v=to_v is not None
            )
        # V and a that were computed here are nobody else's. Fixed ones are k and w: saved, torch notices their changes.
        run.computed = None if to_v is None else v, None if to_a is None else a
        ctx.run = run
        ctx.save_for_backward(x, u0, k, w)
        ctx.set_materialize_grads(False)
        return (out, u, m) if run.potential or m is not None else out

    @staticmethod
    def backward(ctx: Any, g_out: Any, g_u: Any = None, g_m: Any = None) -> tuple[Any, ...]:
        if g_out is None and g_u is None and g_m is None:
            return (None,) * 5
        saved = ctx.saved_tensors  # read once: activation checkpointing gives them out once
        if not torch.is_grad_enabled():
            return *_gradients(ctx, (g_out, g_u, g_m), *saved), None
        with torch.no_grad():
            grads = _gradients(ctx, (g_out, g_u, g_m), *saved)
        return *once(grads, NOT_TWICE, g_out, g_u, g_m, *saved), None


_scan_as_one = apply_directly(_LayerScan)


def _memory(x: Tensor, u0: Tensor) -> tuple[object, ...]:
    """How they lie in memory."""
    return x.shape, x.stride(), x.dtype, u0.shape, u0.stride(), u0.dtype


def _gradients(ctx: Any, grads: tuple[Any, ...], x: Tensor, u0: Tensor, k: Tensor, w: Tensor) -> Gradients:
    """Those of x, u0, k and w."""
    run: _Run = ctx.run
    plan, (to_v, to_a), (v, a) = run.plan, run.links, run.computed
    _, wants_u0, wants_k, wants_w, _ = ctx.needs_input_grad
    v_slope = to_v.slope_now(k, v, run.inside[0]) if v is not None and to_v is not None and wants_k else None
    a_slope = to_a.slope_now(w, a, run.inside[1]) if a is not None and to_a is not None and wants_w else None
    v, a = k if v is None else v, w if a is None else a
    g_out, g_u, g_m = grads
    if (
        g_out is not None
        and g_u is None
        and g_m is None
        # A saved-tensor hook may have returned a tensor in another way than it was.
        and plan is not None
        and _memory(x, u0) == run.memory
        and _is_constant(k, v, plan)
        and _is_constant(w, a, plan)
        and runs_directly(g_out, x, u0, k, w)
    ):
        same = g_out.dtype == x.dtype and g_out.stride() == x.stride() and g_out.shape == x.shape
        gradients = OutputGradients(g_out if same else laid_out_like(g_out, x, x.dtype))
        wanted, slopes = (wants_u0, wants_k, wants_w), (v_slope, a_slope)
        return _backend().backward(Scan(x, u0, v, a, run.call), gradients, wanted=wanted, slopes=slopes, plan=plan)
    dx, du0, dv, da = direct_gradients(run.call, grads, (x, u0, v, a))
    return dx, du0, dv if v_slope is None else dv * v_slope, da if a_slope is None else da * a_slope


def _is_constant(raw: Tensor, constant: Tensor, plan: ScanPlan) -> bool:
    """True if C++ can read ``raw``, or what is computed from it, as a constant of the layer."""
    return raw.dtype == plan.compute and raw.shape == constant.shape and raw.is_contiguous()


def _backend() -> CpuBackend:
    backend = get_backend("cpu")
    assert isinstance(backend, CpuBackend)
    return backend


@lru_cache(maxsize=4096)
def _check(x: torch.Size, dtype: torch.dtype, u0: torch.Size, k: torch.Size, w: torch.Size) -> None:
    check_shapes(x, dtype, u0, k, w)


@lru_cache(maxsize=4096)
def _common(
    memory: tuple[Any, ...],
    k: torch.Size,
    w: torch.Size,
    codes: tuple[int, ...],
    constants: tuple[float, ...],
    membrane: bool,
    channelwise: bool,
) -> tuple[Call, ScanPlan | None]:
    """What runs have in common that differ in values only; checks the shapes."""
    x, strides, dtype, u0 = memory[:4]
    check_shapes(x, dtype, u0, k, w)
    call = Call(codes, constants, membrane, channelwise)
    if x.numel() == 0 or not are_dense_steps(x, strides):
        return call, None
    per_u0 = 0 if u0.numel() == 1 else 2 if u0 == x[1:] else 1
    return call, plan_for(x, strides, dtype, call, (per_u0, k.numel() > 1, w.numel() > 1))


def layer_scan(
    layer: Neuron, x: Tensor, u0: Tensor, membrane: bool = False, *, potential: bool = True, limit: bool = False
) -> ScanResult | None:
    """The scan of ``layer``, whose V and 1/tau are its constants; None where the general way has to run.

    potential: False if nobody wants U[T]. limit: `Neuron.limit_constants` is due.
    """
    k, to_v = layer.raw_constant("threshold")
    w, to_a = layer.raw_constant("leak")
    if not (x.is_cpu and u0.is_cpu and k.is_cpu and w.is_cpu) or not runs_directly(x, u0, k, w):
        return None
    dtype, spec = COMPUTED_IN.get(x.dtype), layer.spec
    if k.dtype != dtype or w.dtype != dtype or choose_directly(layer.backend, x.dtype, spec) != "cpu":
        return None
    if u0.ndim > 1 or (x.ndim == 2 and u0.shape == x.shape[1:]):
        _check(x.shape, x.dtype, u0.shape, k.shape, w.shape)
        u0 = like_step(u0.to(dtype), x)
    elif u0.dtype != dtype or not u0.is_contiguous():
        u0 = u0.to(dtype).contiguous()
    x, u0 = unwrapped(x), unwrapped(u0)
    memory = _memory(x, u0)
    common = _common(memory, k.shape, w.shape, spec.codes, spec.constants, membrane, layer.channels is not None)
    inside = to_v is None or to_v.contains(k), to_a is None or to_a.contains(w)
    if limit and inside != _INSIDE:
        layer.limit_constants()
    run = _Run((to_v, to_a), inside, memory, common, potential)
    out = _scan_as_one(x, u0, unwrapped(k).contiguous(), unwrapped(w).contiguous(), run)
    assert run.active is not None
    out, u, m = out if type(out) is tuple else (out, _NOT_WANTED, None)
    return ScanResult(out, _NOT_WANTED if u is None else u, m, run.active)

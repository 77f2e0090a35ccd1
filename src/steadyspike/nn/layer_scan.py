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
from steadyspike.kernels.layout import compute_dtype, dense_steps, laid_out_like, like_step
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.arguments import check_shapes
from steadyspike.kernels.scan.choose import choose_directly, get_backend
from steadyspike.kernels.scan.contract import Call, Gradients, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.kernels.scan.operator import NOT_TWICE, direct_gradients
from steadyspike.nn.parametrization import Link

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron


_NOT_WANTED = torch.empty(0)


class _Run:
    """One run of a layer. links: of V and of 1/tau, None for a constant that is fixed. trained: gradients are enabled.

    potential: U[T] is wanted. active, memory: once they are known, MP-Init's statistics and how the saved tensors lie
    in memory.
    """

    __slots__ = ("active", "call", "links", "memory", "potential", "trained")

    def __init__(self, links: tuple[Link | None, Link | None], call: Call, potential: bool) -> None:
        self.links, self.call, self.potential = links, call, potential
        self.trained = torch.is_grad_enabled()
        self.active: Tensor | None = None
        self.memory: list[object] = []


class _LayerScan(torch.autograd.Function):
    """(out, U[T], M) of x, u0 and the raw parameters, or the constants themselves where they are fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u0: Tensor, k: Tensor, w: Tensor, run: _Run) -> Any:
        to_v, to_a = run.links
        v, a = k if to_v is None else to_v.limited_now(k), w if to_a is None else to_a.limited_now(w)
        scan = Scan(dense_steps(x), u0, v, a, run.call)
        words = wanted_words(scan, run.trained and any(ctx.needs_input_grad))
        if words is None:
            out, u, m, run.active = _backend().forward(scan, potential=run.potential)
        else:
            out, u, m, run.active = forward_with_notes(scan, words, ctx, potential=run.potential)
        # V and a that were computed here are nobody else's. Fixed ones are k and w: saved, torch notices their changes.
        run.memory = _memory(_kept(run, x, u0, v, a))
        ctx.run, ctx.computed = run, (None if to_v is None else v, None if to_a is None else a)
        ctx.save_for_backward(x, u0, k, w)
        ctx.set_materialize_grads(False)
        return out, u, m

    @staticmethod
    def backward(ctx: Any, g_out: Any, g_u: Any, g_m: Any) -> tuple[Any, ...]:
        if g_out is None and g_u is None and g_m is None:
            return (None,) * 5
        x, u0, k, w = ctx.saved_tensors  # read once: activation checkpointing gives them out once
        v, a = ctx.computed
        saved = (x, u0, k if v is None else v, w if a is None else a)
        if not torch.is_grad_enabled():
            return *_gradients(ctx, (g_out, g_u, g_m), saved, k, w), None
        with torch.no_grad():
            grads = _gradients(ctx, (g_out, g_u, g_m), saved, k, w)
        return *once(grads, NOT_TWICE, g_out, g_u, g_m, x, u0, k, w), None


_scan_as_one = apply_directly(_LayerScan)


def _memory(tensors: list[Tensor]) -> list[object]:
    """How they lie in memory: a saved-tensor hook may return a tensor in another way than it was."""
    return [(t.shape, t.stride(), t.dtype) for t in tensors]


def _kept(run: _Run, x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> list[Tensor]:
    """What the backward gets from saved-tensor hooks: V and a only where they are not computed from k and w."""
    return [x, u0] + [c for c, link in zip((v, a), run.links) if link is None]


def _gradients(
    ctx: Any, grads: tuple[Any, ...], saved: tuple[Tensor, Tensor, Tensor, Tensor], k: Tensor, w: Tensor
) -> Gradients:
    """Those of x, u0, k and w; saved: x, u0, V and a."""
    run, (_, *wanted, _) = ctx.run, ctx.needs_input_grad
    (g_out, g_u, g_m), (x, u0, v, a), (to_v, to_a) = grads, saved, run.links
    kept = _kept(run, *saved)
    only_out = g_out is not None and g_u is None and g_m is None
    if only_out and _memory(kept) == run.memory and runs_directly(g_out, *kept):
        scan = Scan(dense_steps(x), u0, v, a, run.call)
        gradients = OutputGradients(laid_out_like(g_out, scan.x, x.dtype))
        dx, du0, dv, da = _backend().backward(scan, gradients, wanted=wanted)
    else:
        dx, du0, dv, da = direct_gradients(run.call, grads, saved)
    if dv is not None and to_v is not None and wanted[1]:
        dv = to_v.pulled_back_now(dv, k, v)
    if da is not None and to_a is not None and wanted[2]:
        da = to_a.pulled_back_now(da, w, a)
    return dx, du0, dv, da


def _backend() -> CpuBackend:
    backend = get_backend("cpu")
    assert isinstance(backend, CpuBackend)
    return backend


@lru_cache(maxsize=4096)
def _per_element(x: torch.Size, dtype: torch.dtype, u0: torch.Size, k: torch.Size, w: torch.Size) -> bool:
    """True if u0 has a value per element; checks the shapes, once for each combination."""
    check_shapes(x, dtype, u0, k, w)
    return len(u0) > 1 or u0 == x[1:]


def layer_scan(
    layer: Neuron, x: Tensor, u0: Tensor, membrane: bool = False, potential: bool = True
) -> ScanResult | None:
    """The scan of ``layer``, whose V and 1/tau are its constants; None where the general way has to run.

    potential: False if nobody wants U[T].
    """
    k, to_v = layer.raw_constant("threshold")
    w, to_a = layer.raw_constant("leak")
    if not (x.is_cpu and u0.is_cpu and k.is_cpu and w.is_cpu) or not runs_directly(x, u0, k, w):
        return None
    dtype = compute_dtype(x)
    if k.dtype != dtype or w.dtype != dtype or choose_directly(layer.backend, x.dtype, layer.spec) != "cpu":
        return None
    if _per_element(x.shape, x.dtype, u0.shape, k.shape, w.shape):
        u0 = like_step(u0.to(dtype), x)
    elif u0.dtype != dtype or not u0.is_contiguous():
        u0 = u0.to(dtype).contiguous()
    run = _Run((to_v, to_a), Call.of(layer.spec, membrane, layer.channels is not None), potential)
    arguments = unwrapped(x), unwrapped(u0), unwrapped(k).contiguous(), unwrapped(w).contiguous()
    out, u, m = _scan_as_one(*arguments, run)
    assert run.active is not None
    return ScanResult(out, _NOT_WANTED if u is None else u, m, run.active)

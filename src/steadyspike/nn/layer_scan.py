"""A layer's scan as one autograd node: from the input and the raw parameters of V and 1/tau to the output.

It computes what `Neuron.threshold`, `Neuron.leak` and `lif_scan` compute one after the other, with the same operations,
but autograd sees one function instead of three: on a small layer the calls take longer than the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import compute_dtype, dense_steps, like_step
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.arguments import check_arguments
from steadyspike.kernels.scan.choose import choose_backend, get_backend
from steadyspike.kernels.scan.contract import Call, Scan
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.kernels.scan.operator import NOT_TWICE, direct_gradients
from steadyspike.nn.parametrization import Link

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron


class _Settings(NamedTuple):
    """links: of V and of 1/tau, None for a constant that is fixed. trained: gradients are enabled."""

    links: tuple[Link | None, Link | None]
    call: Call
    trained: bool


class _LayerScan(torch.autograd.Function):
    """(out, U[T], M, active) of x, u0 and the raw parameters, or the constants themselves where they are fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u0: Tensor, k: Tensor, w: Tensor, settings: _Settings) -> Any:
        v, a = (raw if link is None else link.limited(raw) for raw, link in zip((k, w), settings.links))
        scan = Scan(dense_steps(x), u0, v, a, settings.call)
        words = wanted_words(scan, settings.trained and any(ctx.needs_input_grad))
        results = get_backend("cpu").forward(scan) if words is None else forward_with_notes(scan, words, ctx)
        ctx.settings = settings
        ctx.save_for_backward(x, u0, v, a, k, w)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(results[3])
        return results

    @staticmethod
    def backward(ctx: Any, g_out: Any, g_u: Any, g_m: Any, _: Any) -> tuple[Any, ...]:
        call, links = ctx.settings.call, ctx.settings.links
        g_m = g_m if call.membrane else None
        if g_out is None and g_u is None and g_m is None:
            return (None,) * 5
        *saved, k, w = ctx.saved_tensors  # read once: activation checkpointing gives them out once
        with torch.no_grad():
            dx, du0, *constants = direct_gradients(call, (g_out, g_u, g_m), tuple(saved))
            dk, dw = (
                g if link is None or not needed else link.pulled_back(g, raw, value)
                for g, raw, value, link, needed in zip(constants, (k, w), saved[2:], links, ctx.needs_input_grad[2:4])
            )
        return (*once([dx, du0, dk, dw], NOT_TWICE, g_out, g_u, g_m, *saved[:2], k, w), None)


def layer_scan(layer: Neuron, x: Tensor, u0: Tensor, membrane: bool) -> ScanResult | None:
    """The scan of ``layer``, whose V and 1/tau are its constants; None where the general way has to run."""
    dtype = compute_dtype(x)
    constants = [layer.raw_constant(name) for name in ("threshold", "leak")]
    (k, to_v), (w, to_a) = constants
    if k.dtype != dtype or w.dtype != dtype or not x.is_cpu or not runs_directly(x, u0, k, w):
        return None
    if choose_backend(layer.backend, x, layer.spec) != "cpu":
        return None
    check_arguments(x, u0, k, w)
    u0 = u0.to(dtype)
    u0 = like_step(u0, x) if u0.ndim > 1 or u0.shape == x.shape[1:] else u0.contiguous()
    call = Call.of(layer.spec, membrane, layer.channels is not None)
    settings = _Settings((to_v, to_a), call, torch.is_grad_enabled())
    out, u, m, active = _LayerScan.apply(x, u0, k.contiguous(), w.contiguous(), settings)
    return ScanResult(out, u, m if membrane else None, active)

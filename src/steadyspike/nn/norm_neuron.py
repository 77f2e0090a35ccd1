"""``neuron(norm(y) + extra)`` as one operator: the input current is never in memory.

The forward takes the batch statistics of ``y`` in a pass of its own and scans scale y + shift; the backward's scan adds
up what the norm needs on its way, and one more pass gives dy. Beside the two layers one after the other, only rounding
differs: running statistics are the same, bit for bit; currents differ in the last places, so that a potential within
rounding of the threshold may fall on its other side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, per_channel
from steadyspike.core.torch_private import forward_hooks, has_other_hooks
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.eager import is_ordinary
from steadyspike.kernels.layout import is_dense, laid_out_like, like_step, same_strides
from steadyspike.kernels.once import once
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import choose_backend, get_backend
from steadyspike.kernels.scan.contract import Affine, Call, NormSums, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.cpu.norm_gradient import norm_input_gradient
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.nn.memory.norm import NotedTDBN
from steadyspike.nn.memory.notes import note_norm, plain_only
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.tdbn import TDBN

NOT_TWICE = (
    "norm and scan as one operator cannot be differentiated twice; for gradients of gradients use neurons with "
    "backend='reference'"
)


class _Settings(NamedTuple):
    """Everything that is no tensor; ``plain`` computes the output from the tensors by ordinary layers."""

    neuron: Neuron
    eps: float
    trained: bool  # gradients are enabled

    def plain(self, *tensors: Tensor | None) -> Tensor:
        y, weight, bias, extra, u0, v, a = tensors
        assert y is not None and u0 is not None and v is not None and a is not None
        folded = torch.nn.functional.batch_norm(y.flatten(0, 1), None, None, weight, bias, True, 0.0, self.eps)
        x = folded.unflatten(0, y.shape[:2])
        return lif_scan(x if extra is None else x + extra, u0, v, a, self.neuron.spec).out


class _NormScan(torch.autograd.Function):
    """(output, U[T], MP-Init's statistics) of y, the norm's parameters and statistics, extra, u0, v, a."""

    @staticmethod
    def forward(ctx: Any, settings: _Settings, mean: Tensor, invstd: Tensor, *tensors: Tensor | None) -> Any:
        y, weight, bias, extra, u0, v, a = tensors
        assert y is not None and weight is not None and bias is not None
        scale, shift = _affine(mean, invstd, weight, bias)
        spec, channelwise = settings.neuron.spec, settings.neuron.channels is not None
        scan = Scan(y, u0, v, a, Call.of(spec, channelwise=channelwise), Affine(scale, shift, extra))  # type: ignore[arg-type]
        results = forward_with_notes(scan, wanted_words(scan, settings.trained and any(ctx.needs_input_grad)), ctx)
        ctx.settings = settings
        ctx.save_for_backward(mean, invstd, scale, shift, *tensors)
        ctx.set_materialize_grads(False)
        out, u, _, active = results
        ctx.mark_non_differentiable(u, active)
        return out, u, active

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if g is None:
            return (None,) * 10
        saved = ctx.saved_tensors  # read once: hooks may give them out once
        mean, invstd, scale, shift, *tensors = saved
        if not is_ordinary(g, *(t for t in saved if t is not None)):  # batched gradients, for instance
            return None, None, None, *_plain_gradients(ctx, tensors, g)
        y, _, _, u0, v, a = (t.detach() for t in (*tensors[:3], *tensors[4:]))
        extra = None if tensors[3] is None else tensors[3].detach()
        y = y if is_dense(y[0]) and y.stride(0) == y[0].numel() else y.contiguous()
        extra = None if extra is None else laid_out_like(extra, y, y.dtype)
        u0 = like_step(u0, y) if u0.numel() > 1 and u0.shape == y.shape[1:] else u0
        spec = ctx.settings.neuron.spec
        sums = NormSums(mean, torch.empty(2, len(mean), dtype=torch.float64, device="cpu"))
        affine = Affine(scale.detach(), shift.detach(), extra)
        scan = Scan(y, u0, v, a, Call.of(spec), affine)
        current, du0, dv, da = _backend().backward(scan, OutputGradients(laid_out_like(g, y, y.dtype)), sums)
        count = y.numel() // len(mean)
        by_bias, by_weight = sums.sums[0], sums.sums[1] * invstd
        # dy = scale (dI - mean(dI) - xhat mean(dI xhat)), with xhat = (y - mean) invstd
        by_y = -(scale * invstd) * (by_weight / count)
        constant = -scale * (by_bias / count) - mean * by_y
        dy = norm_input_gradient(current, y, scale, by_y, constant, reuse=extra is None)
        grads = [dy, by_weight.to(y.dtype), by_bias.to(y.dtype), current if extra is not None else dy, du0, dv, da]
        dy, dweight, dbias, dextra, du0, dv, da = once(grads, NOT_TWICE, g, *tensors)
        return None, None, None, dy, dweight, dbias, dextra if extra is not None else None, du0, dv, da


class _NormCurrent(torch.autograd.Function):
    """The current scale y + shift itself, rounded as the scan rounds it: two operators, since one might use an FMA."""

    @staticmethod
    def forward(ctx: Any, eps: float, mean: Tensor, invstd: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.eps = eps
        ctx.save_for_backward(mean, invstd, y, weight, bias)
        scale, shift = _affine(mean, invstd, weight, bias)
        return (y * per_channel(scale, y.ndim - 1)).add_(per_channel(shift, y.ndim - 1))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        mean, invstd, y, weight, bias = ctx.saved_tensors
        folded = (g.flatten(0, 1), y.flatten(0, 1), weight, None, None, mean, invstd)
        dy, dweight, dbias = torch.ops.aten.native_batch_norm_backward(*folded, True, ctx.eps, [True] * 3)
        return None, None, None, *once([dy.unflatten(0, y.shape[:2]), dweight, dbias], NOT_TWICE, g, y, weight, bias)


def _affine(mean: Tensor, invstd: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift), each [C], of a norm with these statistics."""
    scale = weight * invstd
    return scale, bias - mean * scale


def _plain_gradients(ctx: Any, tensors: list[Tensor | None], g: Tensor) -> list[Tensor | None]:
    """The gradients of the two layers one after the other."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
        out = ctx.settings.plain(*leaves)
    wanted = [t for t in leaves if t is not None]
    found = iter(torch.autograd.grad(out, wanted, g, allow_unused=True))
    return [None if t is None else next(found) for t in leaves]


def _backend() -> CpuBackend:
    backend = get_backend("cpu")
    assert isinstance(backend, CpuBackend)
    return backend


def norm_neuron(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | None = None) -> Tensor:
    """``neuron(norm(y) + extra)`` for ``y`` [T, B, C, ...]: one operator where nobody looks between, else as written.

    One operator: in training, for `TDBN` before a layer with the LIF scan of `Neuron`, on the CPU in float32 or
    float64, in one process; also without gradients and while activation checkpointing recomputes, so that both runs
    of a checkpoint round alike. For hooks and taps on the neuron that look at its current, the current is computed with
    the same roundings, so that outputs and statistics are the same bits as without them. Hooks on the norm,
    torch.compile, torch.func and autocast to half precision choose the two layers one after the other.
    """
    if not (isinstance(norm, TDBN) and isinstance(neuron, Neuron) and _fits(norm, neuron, y, extra)):
        x = norm(y)
        return neuron(x if extra is None else x + extra)
    if not looked_at(neuron) and not any(tap.membrane or tap.current for tap in neuron.taps.values()):
        return _fused(norm, neuron, y, extra)
    x = _current(norm, y)
    return neuron(x if extra is None else x + extra)


def _fits(norm: TDBN, neuron: Neuron, y: Tensor, extra: Tensor | None) -> bool:
    """True if norm and scan could be one, whoever looks at the neuron."""
    return (
        norm.training
        and norm.bias is not None
        and type(norm).forward in (TDBN.forward, NotedTDBN.forward)
        and type(neuron).forward is Neuron.forward
        and type(neuron).run is Neuron.run
        and not norm.synchronises
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed())
        and not looked_at(norm)
        and _fits_memory(norm, neuron, y, extra)
    )


def _fits_memory(norm: TDBN, neuron: Neuron, y: Tensor, extra: Tensor | None) -> bool:
    """True if the tensors are as the C++ scan takes them."""
    if y.dtype not in (torch.float32, torch.float64) or y.ndim < 3 or y.numel() < 2 * norm.channels:
        return False
    if y.shape[2] != norm.channels or norm.weight.dtype != y.dtype or norm.running_mean.dtype != y.dtype:
        return False
    if y.device.type != "cpu" or not is_ordinary(y, *(() if extra is None else (extra,))):
        return False
    if not is_dense(y[0]) or y.stride(0) != y[0].numel() or choose_backend(neuron.backend, y, neuron.spec) != "cpu":
        return False
    return extra is None or (extra.shape == y.shape and extra.dtype == y.dtype and same_strides(extra[0], y[0]))


def looked_at(module: nn.Module) -> bool:
    """True if a hook would see, or could change, what goes into or comes out of the layer."""
    seen = any(not getattr(hook, "only_output", False) for hook in forward_hooks(module))
    return seen or has_other_hooks(module)


def _statistics(norm: TDBN, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, 1 / sd, weight) of a training forward, which moves the running statistics."""
    norm.count_batch()
    with torch.no_grad():
        mean, var = torch.batch_norm_update_stats(y.flatten(0, 1), *norm.running(), norm.momentum)
        invstd = torch.rsqrt(var + norm.eps)
    return mean, invstd, norm.weight if norm.factor == 1.0 else norm.weight * norm.factor


def _current(norm: TDBN, y: Tensor) -> Tensor:
    mean, invstd, weight = _statistics(norm, y)
    assert norm.bias is not None
    x = _NormCurrent.apply(norm.eps, mean, invstd, y, weight, norm.bias)
    if isinstance(norm, NotedTDBN) and not plain_only():
        with torch.no_grad():
            note_norm(x, y, *_affine(mean, invstd, weight, norm.bias))
    return x


def _fused(norm: TDBN, neuron: Neuron, y: Tensor, extra: Tensor | None) -> Tensor:
    neuron.check_input(y)
    mean, invstd, weight = _statistics(norm, y)
    u0 = neuron.init.potential(y).to(y.dtype)
    if neuron.training:
        neuron.limit_constants()
    u0 = like_step(u0, y) if u0.ndim > 1 or u0.shape == y.shape[1:] else u0.contiguous()
    v, a = (p.to(y.dtype).contiguous() for p in (neuron.threshold, neuron.leak))
    settings = _Settings(neuron, norm.eps, torch.is_grad_enabled())
    out, u, active = _NormScan.apply(settings, mean, invstd, y, weight, norm.bias, extra, u0, v, a)
    for tap in neuron.taps.values():
        tap.see(neuron, y, u0, ScanResult(out, u, None, active))
    if neuron.training:
        neuron.init.update(active)
    for hook in forward_hooks(neuron):  # those that keep spikes as bits
        hook(neuron, (y,), out)
    return out

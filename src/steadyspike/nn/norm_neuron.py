"""``neuron(norm(y) + extra)`` as one operator: the input current is never in memory.

In training the forward takes the batch statistics of ``y`` in a pass of its own and scans scale y + shift; the
backward's scan adds up what the norm needs on its way, and one more pass gives dy. In evaluation scale and shift come
from the running statistics. An ``extra`` that is spikes is read, and kept for the backward, as bits. Beside the two
layers one after the other, only rounding differs: running statistics are the same, bit for bit; currents differ in the
last places, so that a potential within rounding of the threshold may fall on its other side.

An ``extra`` that is the output of a second norm (`Normed`, a shortcut with a convolution) is not computed either: the
scan reads that norm's input with its scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.torch_private import apply_directly, forward_hooks, has_other_hooks, unwrapped
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import fills_one_block, laid_out_like, like_step, same_strides
from steadyspike.kernels.once import once, trace_of
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import choose_directly, get_backend
from steadyspike.kernels.scan.contract import Affine, Call, NormSums, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.cpu.norm_gradient import norm_input_gradient
from steadyspike.kernels.scan.noted import forward_with_notes, wanted_words
from steadyspike.kernels.spikes.known import known_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes
from steadyspike.nn.evaluation_map import evaluation_map, has_evaluation_map
from steadyspike.nn.memory.norm import NotedTDBN
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm_current import (
    NOT_TWICE,
    Normed,
    affine,
    current,
    current_of_two,
    norm_gradients,
    statistics,
)
from steadyspike.nn.parametrization import Link

_REPLACED = {"forward", "run"}  # methods that an instance may have of its own, as in a stream


class Settings(NamedTuple):
    """Everything that is no tensor; ``plain`` computes the output from the tensors by ordinary layers.

    links: of V and of 1/tau, from the parameters k and w; None where k or w is the constant itself.
    """

    neuron: Neuron
    eps: float
    links: tuple[Link | None, Link | None]
    trained: bool  # gradients are enabled
    channelwise: bool  # MP-Init's statistics per channel
    notes: bool = True  # for the layers that read the output: its spikes as bits, where its gradient is needed
    second_eps: float = 0.0  # of the norm of extra
    source: Tensor | None = None  # the trace of an extra that is kept as bits

    def plain(self, *tensors: Tensor | None) -> Tensor:
        y, weight, bias, extra, u0, k, w, *second = tensors
        assert y is not None and u0 is not None and k is not None and w is not None
        v, a = (raw if link is None else link.value(raw) for raw, link in zip((k, w), self.links))
        x = self._normed(y, weight, bias, self.eps)
        if second and extra is not None:
            extra = self._normed(extra, second[0], second[1], self.second_eps)
        return lif_scan(x if extra is None else x + extra, u0, v, a, self.neuron.spec).out

    @staticmethod
    def _normed(y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        folded = torch.nn.functional.batch_norm(y.flatten(0, 1), None, None, weight, bias, True, 0.0, eps)
        return folded.unflatten(0, y.shape[:2])


class _NormScan(torch.autograd.Function):
    """(output, U[T], MP-Init's statistics) of y, the norm's parameters and statistics, extra, u0, and V and a or the
    parameters that they are computed from.

    spikes: what extra is, if that is known. second: mean, 1 / sd, weight and bias of a norm of extra.
    """

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        spikes: PackedSpikes | None,
        mean: Tensor,
        invstd: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        extra: Tensor | None,
        u0: Tensor,
        k: Tensor,
        w: Tensor,
        *second: Tensor,
    ) -> Any:
        to_v, to_a = settings.links
        v, a = k if to_v is None else to_v.limited_now(k), w if to_a is None else to_a.limited_now(w)
        added = _Added(extra, None, None) if spikes is None else _Added.of(spikes, y)
        scale, shift = affine(mean, invstd, weight, bias)
        if second:
            second_scale, second_shift = affine(*second)
            added, shift = _Added(extra, second_scale, None), shift + second_shift
        scan = _scan(settings, y, u0, v, a, added.to(scale, shift))
        trained = settings.trained and any(ctx.needs_input_grad)
        words = wanted_words(scan, trained) if settings.notes else None
        looked_for = bool(settings.neuron.taps)
        results = forward_with_notes(scan, words, ctx, potential=looked_for, own_v=to_v is not None)
        ctx.settings = settings
        ctx.like = None if spikes is None else (spikes.shape, spikes.stride)  # its bits are saved: hooks see them
        ctx.computed = (None if to_v is None else v, None if to_a is None else a)
        ctx.save_for_backward(mean, invstd, scale, shift, *added, y, weight, bias, u0, k, w, *second)
        ctx.set_materialize_grads(False)
        out, u, _, active = results
        ctx.mark_non_differentiable(active if u is None else u, active)
        return out, u, active

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        saved = ctx.saved_tensors  # read once: hooks may give them out once
        if not torch.is_grad_enabled():
            return None, None, None, None, *_with_second(_NormScan.gradients(ctx, g, saved))
        with torch.no_grad():
            grads = _NormScan.gradients(ctx, g, saved)
        return None, None, None, None, *_with_second(list(once(grads, NOT_TWICE, g, ctx.settings.source, *saved)))

    @staticmethod
    def gradients(ctx: Any, g: Tensor, saved: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Those of y, weight, bias, extra, u0, k and w, and of weight and bias of a norm of extra."""
        mean, invstd, scale, shift, extra, level, bits, y, _, _, u0, k, w, *second = saved
        if not runs_directly(g, *(t for t in saved if t is not None)):  # batched gradients, for instance
            dense = extra if bits is None else PackedSpikes(bits, level, *ctx.like).unpack()
            return _plain_gradients(ctx, [*saved[7:10], dense, *saved[10:13], *saved[15:]], g)
        (to_v, to_a), (v, a) = ctx.settings.links, ctx.computed
        v, a = k if v is None else v, w if a is None else a
        y = y if fills_one_block(y) else y.contiguous()
        extra = None if extra is None else laid_out_like(extra, y, y.dtype)
        u0 = like_step(u0, y) if u0.numel() > 1 and u0.shape == y.shape[1:] else u0
        sums = NormSums(mean, mean.new_empty((2, len(mean)), dtype=torch.float64))
        scan = Scan(y, u0, v, a, Call.of(ctx.settings.neuron.spec), _Added(extra, level, bits).to(scale, shift))
        gradients, wanted = OutputGradients(laid_out_like(g, y, y.dtype)), ctx.needs_input_grad[8:11]
        k, w = k.contiguous(), w.contiguous()
        v_slope = to_v.slope_now(k, v, to_v.contains(k)) if to_v is not None and wanted[1] else None
        a_slope = to_a.slope_now(w, a, to_a.contains(w)) if to_a is not None and wanted[2] else None
        given, du0, dv, da = _backend().backward(scan, gradients, sums, wanted=wanted, slopes=(v_slope, a_slope))
        count = y.numel() // len(mean)
        by_bias, by_weight = sums.sums[0], sums.sums[1] * invstd
        # dy = scale (dI - mean(dI) - xhat mean(dI xhat)), with xhat = (y - mean) invstd
        by_y = -(scale * invstd) * (by_weight / count)
        constant = -scale * (by_bias / count) - mean * by_y
        by_extra: Tensor | None = given if extra is not None or bits is not None else None
        by_second: list[Tensor | None] = []
        if second:
            assert extra is not None
            by_extra, *by_second = norm_gradients(given, extra, *second[:3])
        dy = norm_input_gradient(given, y, scale, by_y, constant, reuse=by_extra is not given)
        return [dy, by_weight.to(y.dtype), by_bias.to(y.dtype), by_extra, du0, dv, da, *by_second]


def _with_second(found: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients of all arguments from y on: the statistics of a second norm have none."""
    return [*found[:7], None, None, *found[7:]] if len(found) > 7 else found


norm_and_scan = apply_directly(_NormScan)


class _Added(NamedTuple):
    """What is added to the norm's output: a tensor, or spikes as bits with their level per channel, or nothing."""

    extra: Tensor | None
    level: Tensor | None
    bits: Tensor | None

    @classmethod
    def of(cls, spikes: PackedSpikes, y: Tensor) -> _Added:
        return cls(None, spikes.level.expand(y.shape[2]).contiguous(), spikes.words)

    def to(self, scale: Tensor, shift: Tensor) -> Affine:
        return Affine(scale, shift, self.extra, self.level, self.bits)


def _scan(settings: Settings, y: Tensor, u0: Tensor, v: Tensor, a: Tensor, affine: Affine) -> Scan:
    return Scan(y, u0, v, a, Call.of(settings.neuron.spec, channelwise=settings.channelwise), affine)


def _known(extra: Tensor | None, y: Tensor) -> PackedSpikes | None:
    """The bits of ``extra``, which has the shape and strides of ``y``; None to take its values."""
    if extra is None or y.dtype != extra.dtype:
        return None
    # The gradients refuse to be differentiated by the tensors that are saved; y has to stand for an extra that is not.
    alone = torch.is_grad_enabled() and extra.requires_grad and not y.requires_grad
    return None if alone else known_spikes(extra)


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


def norm_neuron(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Tensor | Normed | None = None) -> Tensor:
    """``neuron(norm(y) + extra)`` for ``y`` [T, B, C, ...]: one operator where nobody looks between, else as written.

    One operator: before a layer with the LIF scan of `Neuron`, on the CPU in float32 or float64. In training for `TDBN`
    in one process; also without gradients and while activation checkpointing recomputes, so that both runs of a
    checkpoint round alike. In evaluation without gradients for every norm that `evaluation_map` knows. For hooks and
    taps on the neuron that look at its current, and for gradients in evaluation, the current is computed with the same
    roundings, so that outputs and statistics are the same bits as without them. Hooks on the norm, torch.compile,
    torch.func and autocast to half precision choose the two layers one after the other.
    """
    if isinstance(extra, Normed):
        if _fits_second(norm, neuron, y, extra):
            return _with_a_second_norm(norm, neuron, y, extra)
        extra = extra.value()
    if not (isinstance(norm, TimeNorm) and isinstance(neuron, Neuron) and _fits(norm, neuron, y, extra)):
        x = norm(y)
        return neuron(x if extra is None else x + extra)
    if not _looks_inside(neuron):
        if norm.training:
            assert isinstance(norm, TDBN)
            return _fused(norm, neuron, y, extra)
        if not (torch.is_grad_enabled() and _has_gradients(norm, neuron, y, extra)):
            return _evaluated(norm, neuron, y, extra)
    x = current(norm, y)
    return neuron(x if extra is None else x + extra)


def _with_a_second_norm(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Normed) -> Tensor:
    """The same for an ``extra`` that is a norm's output, in training."""
    assert isinstance(norm, TDBN) and isinstance(neuron, Neuron)
    if _looks_inside(neuron):
        return neuron(current_of_two(norm, y, extra))
    return _fused(norm, neuron, y, extra)


def _looks_inside(neuron: Neuron) -> bool:
    """True if somebody wants to see the neuron's current."""
    return looked_at(neuron) or any(tap.membrane or tap.current for tap in neuron.taps.values())


def _has_gradients(norm: TimeNorm, neuron: Neuron, *inputs: Tensor | None) -> bool:
    parameters = (p for module in (norm, neuron) for p in module.parameters())
    return any(t is not None and t.requires_grad for t in (*inputs, *parameters))


def _known_norm(norm: TimeNorm) -> bool:
    if not norm.training:
        return has_evaluation_map(norm)
    known = type(norm).forward in (TDBN.forward, NotedTDBN.forward)
    return known and norm.bias is not None and not norm.synchronises


def _fits(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | None) -> bool:
    """True if norm and scan could be one, whoever looks at the neuron."""
    return fits_layers(norm, neuron) and _fits_memory(norm, neuron, y, extra)


def _fits_second(norm: nn.Module, neuron: nn.Module, y: Tensor, extra: Normed) -> bool:
    """True if the two norms and the scan could be one, in training, whoever looks at the neuron."""
    if not (isinstance(norm, TDBN) and isinstance(extra.norm, TDBN) and isinstance(neuron, Neuron)):
        return False
    if not (norm.training and extra.norm.training and norm.channels == extra.norm.channels):
        return False
    if extra.norm.weight.dtype != y.dtype or extra.norm.running_mean.dtype != y.dtype:
        return False
    return fits_layers(extra.norm, neuron) and _fits(norm, neuron, y, extra.y)


def fits_layers(norm: TimeNorm, neuron: Neuron) -> bool:
    """The part of it that does not depend on the input."""
    return (
        _known_norm(norm)
        and not _REPLACED & (norm.__dict__.keys() | neuron.__dict__.keys())
        and type(neuron).forward is Neuron.forward
        and type(neuron).run is Neuron.run
        and not (torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed())
        and not looked_at(norm)
    )


def _fits_memory(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | None) -> bool:
    """True if the tensors are as the C++ scan takes them."""
    if y.dtype not in (torch.float32, torch.float64) or y.ndim < 3 or y.numel() < 2 * norm.channels:
        return False
    if y.shape[2] != norm.channels or norm.weight.dtype != y.dtype or norm.running_mean.dtype != y.dtype:
        return False
    if not y.is_cpu or not (runs_directly(y) if extra is None else runs_directly(y, extra)):
        return False
    if not fills_one_block(y) or choose_directly(neuron.backend, y.dtype, neuron.spec) != "cpu":
        return False
    if extra is None:
        return True
    if extra.shape != y.shape or extra.dtype != y.dtype:
        return False
    return extra.stride() == y.stride() or same_strides(extra[0], y[0])


def looked_at(module: nn.Module) -> bool:
    """True if a hook would see, or could change, what goes into or comes out of the layer."""
    seen = any(not getattr(hook, "only_output", False) for hook in forward_hooks(module))
    return seen or has_other_hooks(module)


def _fused(norm: TDBN, neuron: Neuron, y: Tensor, extra: Tensor | Normed | None) -> Tensor:
    neuron.check_input(y)
    second: tuple[Tensor | None, ...] = ()
    second_eps = 0.0
    if isinstance(extra, Normed):  # first, as where it is computed: a norm that is both moves its statistics in order
        assert isinstance(extra.norm, TDBN)
        second, second_eps = (*statistics(extra.norm, extra.y), extra.norm.bias), extra.norm.eps
        extra = extra.y
    mean, invstd, weight = statistics(norm, y)
    u0 = _start(neuron, y)
    (k, to_v), (w, to_a) = raw_constants(neuron, y)
    trained, channelwise = torch.is_grad_enabled(), neuron.channels is not None
    y, extra = unwrapped(y), None if extra is None else unwrapped(extra)
    known = None if second else _known(extra, y)
    source = None if known is None else trace_of(extra)
    settings = Settings(neuron, norm.eps, (to_v, to_a), trained, channelwise, second_eps=second_eps, source=source)
    out, u, active = norm_and_scan(
        settings, known, mean, invstd, y, weight, norm.bias, extra, unwrapped(u0), k, w, *second
    )
    return _finished(neuron, y, u0, out, u, active)


@torch.no_grad()
def _evaluated(norm: TimeNorm, neuron: Neuron, y: Tensor, extra: Tensor | None) -> Tensor:
    """The same in evaluation mode, without gradients."""
    neuron.check_input(y)
    norm.check_input(y)
    scale, shift = (c.contiguous() for c in evaluation_map(norm, y.shape[0]))
    spikes = _known(extra, y)
    added = _Added(extra, None, None) if spikes is None else _Added.of(spikes, y)
    u0 = _start(neuron, y)
    v, a = (raw if link is None else link.limited_now(raw) for raw, link in raw_constants(neuron, y))
    call = Call.of(neuron.spec, channelwise=neuron.channels is not None)
    scan = Scan(y, u0, v, a, call, added.to(scale, shift))
    out, u, _, active = forward_with_notes(scan, wanted_words(scan, False), None, potential=bool(neuron.taps))
    return _finished(neuron, y, u0, out, u, active)


def _start(neuron: Neuron, y: Tensor) -> Tensor:
    """U[0] as the C++ scan takes it."""
    u0 = neuron.init.potential(y).to(y.dtype)
    return like_step(u0, y) if u0.ndim > 1 or u0.shape == y.shape[1:] else u0.contiguous()


def raw_constants(neuron: Neuron, y: Tensor) -> list[tuple[Tensor, Link | None]]:
    """V and a as the C++ scan takes them, or the parameters from which a link computes them."""
    if neuron.training:
        neuron.limit_constants()
    if not neuron.has_own_constants:
        return [(c.to(y.dtype).contiguous(), None) for c in (neuron.threshold, neuron.leak)]
    found = []
    for name in ("threshold", "leak"):
        raw, link = neuron.raw_constant(name)
        if raw.dtype != y.dtype:
            raw, link = neuron.constant(name).to(y.dtype), None
        found.append((raw.contiguous(), link))
    return found


def _finished(neuron: Neuron, y: Tensor, u0: Tensor, out: Tensor, u: Tensor | None, active: Tensor) -> Tensor:
    """The output, once everybody has seen it who looks at a forward of the neuron."""
    for tap in neuron.taps.values():
        assert u is not None
        tap.see(neuron, y, u0, ScanResult(out, u, None, active))
    if neuron.training:
        neuron.init.update(active)
    for hook in forward_hooks(neuron):  # those that keep spikes as bits
        hook(neuron, (y,), out)
    return out

"""The fused way to compute a layer: one autograd node for the norms, the scan and MP-Init's step, eager on the CPU.

    current   I = scale x + shift [+ extra, or scale2 extra + shift2]
    scan      from U[0], with V and 1/tau that links compute from parameters (`core.reference_scan`)

Everything except x, V and 1/tau is optional. A norm in training is given by the statistics of the batch (mean, 1 / sd),
weight and bias. The scan of the backward also computes the sums that the norm needs, and one more pass gives dx. A norm
in evaluation is given as its scale and shift. The current is never in memory. The node keeps x, ``extra`` (as bits, if
it is spikes that a scan has noted) and the parameters. The backward (`fused_gradients.py`) computes the potentials
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.spec import FAMILIES
from steadyspike.core.surrogate import SURROGATES
from steadyspike.core.torch_private import apply_directly
from steadyspike.kernels.once import once
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.cpu.neuron_calls import neuron_forward
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.scan.fused_gradients import fused_gradients
from steadyspike.kernels.scan.fused_job import Job, current_map, layout, scales_of
from steadyspike.kernels.scan.operator import NOT_TWICE
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.note import note_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes

_BOUNDED = {code for code, surrogate in enumerate(SURROGATES.values()) if surrogate.bounded}


class _Fused(torch.autograd.Function):
    """Returns the output, or (output, U[T], M) if the job needs one of them."""

    @staticmethod
    def forward(
        ctx: Any,
        job: Job,
        x: Tensor,
        k: Tensor,
        w: Tensor,
        u0: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        extra: Tensor | None = None,
        weight2: Tensor | None = None,
        bias2: Tensor | None = None,
    ) -> Any:
        given, x = x, job.at_every_step(x)
        plan, (to_v, to_a) = job.plan, job.links
        v = k if to_v is None else to_v.forward(k)
        a = w if to_a is None else to_a.forward(w)
        affine = None
        if weight is not None and bias is not None:
            job.scales = scales_of(job.norms, weight, bias, weight2, bias2)
            if job.spikes is not None:
                level = job.spikes.level.expand(job.scales[0].shape[-1])
                job.scales = *job.scales[:2], level.contiguous()
            affine = current_map(job, extra, None if job.spikes is None else job.spikes.words)
        words = None
        if plan.bits:
            # Only a surrogate with a bounded window has elements without a gradient.
            needed = job.trained and plan.call.codes[1] in _BOUNDED and any(ctx.needs_input_grad)
            words = SpikeWords.like(x, needed)
        start = job.start if u0 is None else u0
        constants = v, a, None if to_v is None else k, None if to_a is None else w
        results = neuron_forward(plan, x, constants, start, job.memory, affine, words, job.potential, conv=job.conv)
        if results is None:
            # A parameter was out of its range, and C++ has computed nothing: run again with the limited constants.
            job.inside = False
            v = v if to_v is None else to_v.limited(k)
            a = a if to_a is None else to_a.limited(w)
            constants = v, a, None, None
            results = neuron_forward(plan, x, constants, start, job.memory, affine, words, job.potential, conv=job.conv)
            assert results is not None
        out, u, m = results
        if words is not None:
            _note(plan.call, v, words, out, ctx, own_v=to_v is not None)
        # The computed V and a are private to this node. Fixed ones are k and w, which are saved, so that torch detects
        # changes.
        job.computed = None if to_v is None else v, None if to_a is None else a
        ctx.job = job
        # The usual layer saves only three tensors.
        if u0 is None and weight is None:
            ctx.save_for_backward(given, k, w)
        else:
            kept, spikes = extra, job.spikes
            if spikes is not None:
                kept, job.spikes, job.like = spikes.words, None, (spikes.level, spikes.shape, spikes.stride)
            job.layout = layout(u0), layout(kept)
            ctx.save_for_backward(given, k, w, u0, weight, bias, kept, weight2, bias2)
        # Absent gradients stay None, so that C++ does not read tensors of zeros.
        ctx.set_materialize_grads(False)
        return (out, u, m) if job.potential or m is not None else out

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_u: Tensor | None = None, g_m: Tensor | None = None) -> tuple[Any, ...]:
        if g is None and g_u is None and g_m is None:
            return (None,) * len(ctx.needs_input_grad)
        saved = ctx.saved_tensors  # read once: activation checkpointing returns saved tensors only once
        if not torch.is_grad_enabled():
            return None, *fused_gradients(ctx, (g, g_u, g_m), saved)
        with torch.no_grad():
            grads = fused_gradients(ctx, (g, g_u, g_m), saved)
        return None, *once(grads, NOT_TWICE, g, g_u, g_m, ctx.job.source, *saved)


# Runs the node.
#
# Arguments: (job, x, k, w, u0, weight, bias, extra, weight2, bias2), the last ones only if they exist.
#
# k, w: V and 1/tau, or the parameters from which links compute them, contiguous in the compute dtype
# u0: None if the job has a start
# weight, bias: of the norm of x, or its scale and shift if the job has no statistics; weight2 and bias2 are those of
# extra
fused_scan: Callable[..., Any] = apply_directly(_Fused)


def _note(call: Call, v: Tensor, words: SpikeWords, out: Tensor, node: Any, *, own_v: bool) -> None:
    """Stores ``words``, which the forward has written, in a note on its output.

    own_v: the tensor V will not be changed
    """
    level, spikes = _level(call, v, out, own_v), None
    if level is not None:
        spikes = PackedSpikes(words.bits, level, out.shape, out.stride(), words.counts)
        if not has_no_values(out):
            *counts, invalid = words.counts.tolist()  # one read of all
            spikes.total = sum(counts)
            spikes = None if invalid else spikes
    note_spikes(out, spikes, words.needed, node)


def _level(call: Call, v: Tensor, out: Tensor, own_v: bool) -> Tensor | None:
    """Returns the output value of a spike, [1] or [C]; None if it is not a finite number above 0."""
    if call.codes[0] != FAMILIES["trsg"]:
        return out.new_ones(1)
    level = v.detach() if v.requires_grad else v
    # A copy, because V may be changed in place (a fixed threshold) while the note still exists.
    if not own_v or level.dtype != out.dtype:
        level = level.to(out.dtype, copy=True)
    if has_no_values(level):
        return level
    if level.numel() == 1:
        return level if 0 < level.item() < math.inf else None
    low, high = level.aminmax()  # NaN if there is one
    return level if low.item() > 0 and high.item() < math.inf else None

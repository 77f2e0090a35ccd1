"""Chooses how a layer is computed; all functions here ask `choose_way` (`kernels/scan/choose.py`).

1. fused: one autograd node (`kernels/scan/fused.py`) for U[0], norms (`fused_norm.py`), scan and MP-Init's step; for
   eager calls on the CPU.
2. operator: ``torch.library`` (`kernels/scan/operator.py`); for torch.compile, export, other devices.
3. reference: `core/reference_scan.py`; for torch.func, second derivatives, surrogates without compiled code. A neuron
   with its own ``run`` is computed by this method.

The choice depends on the layer and its tensors, never on hooks or taps. Taps get what the node returns: the output,
MP-Init's statistics, U[0], U[T] and M. A tap that requests the current, or a hook on the neuron, needs the current in
memory. A norm before the neuron is then computed separately, with the scan's rounding, so that outputs and statistics
are equal bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.torch_private import forward_hooks, has_other_hooks, is_compiled, unwrapped
from steadyspike.kernels.conv.call import ConvInput
from steadyspike.kernels.layout import DTYPES
from steadyspike.kernels.once import trace_of
from steadyspike.kernels.scan.call import fused_result, lif_scan, start_tensor
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.cpu.neuron_calls import Start
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import Job, Links, Statistics, fused_job
from steadyspike.kernels.spikes.packed import PackedSpikes
from steadyspike.nn.initial_potential import InitialPotential

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron

COMPUTED_IN = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}
_NOT_WANTED = torch.empty(0)
_CONSTANTS = frozenset({"threshold", "leak", "constant"})
NOTHING = (False, False)


def layer_constants(neuron: Neuron, dtype: torch.dtype) -> tuple[Tensor, Tensor, Links]:
    """Returns the node's arguments for V and 1/tau: k and w with their links, or V and 1/tau themselves.

    dtype: of the arithmetic

    Calls `limit_constants` if the node does not check the ranges itself.
    """
    if neuron.overridden:
        # A subclass that computes V or a itself passes values; the node then has gradients for V and a, not for k and
        # w.
        by_value = neuron.overridden & _CONSTANTS
        if neuron.training and (by_value or "limit_constants" in neuron.overridden):
            neuron.limit_constants()
        if by_value:
            v, a = (c.to(dtype).contiguous() for c in (neuron.threshold, neuron.leak))
            return v, a, (None, None)
    k, to_v = neuron.raw_constant("threshold")
    w, to_a = neuron.raw_constant("leak")
    # The node takes k only if C++ has the formula of its slope and no cast is needed; otherwise it takes V.
    v_itself = k.dtype != dtype or (to_v is not None and to_v.native.code < 0)
    a_itself = w.dtype != dtype or (to_a is not None and to_a.native.code < 0)
    if v_itself or a_itself:
        if neuron.training:
            neuron.limit_constants()
        if v_itself:
            k, to_v = neuron.constant("threshold").to(dtype), None
        if a_itself:
            w, to_a = neuron.constant("leak").to(dtype), None
    return k.contiguous(), w.contiguous(), (to_v, to_a)


def native_start(neuron: Neuron, dtype: torch.dtype) -> Start | None:
    """Returns what C++ needs to start the layer and to update MP-Init's mean; None if Python must compute U[0]."""
    init = neuron._modules.get("init")  # the same as neuron.init, in a tenth of the time
    if not isinstance(init, InitialPotential) or not init.has_native_start:
        return None
    return init.native_start(neuron.training, dtype)


class Norms(NamedTuple):
    """What the node computes before the scan.

    statistics: of the norms of x and of extra; None for a norm in evaluation, or without one
    tensors: weight and bias of the first norm (in evaluation its scale and shift), extra, weight and bias of the second
    bits: ``extra`` as bits, which are then used instead of its values
    once: y [1, B, ...], if x is y at every step; the node then reads y and returns its gradient
    """

    statistics: tuple[Statistics | None, Statistics | None]
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
    bits: PackedSpikes | None
    once: Tensor | None = None


def forward_layer(neuron: Neuron, x: Tensor, norms: Norms | None = None, conv: ConvInput | None = None) -> Tensor:
    """Computes `Neuron.forward` of a checked ``x`` [T, B, ...]: from the initial potential, with MP-Init's step.

    norms: for tensors that `norm_neuron` has checked; the node then reads the current that they make of x
    conv: x is the output of this convolution and has no values yet, see `conv_norm_neuron`
    """
    dtype, u0 = COMPUTED_IN.get(x.dtype), None
    if dtype is not None and "run" not in neuron.overridden and not torch.compiler.is_compiling():
        start = native_start(neuron, dtype)
        k, w, links = layer_constants(neuron, dtype)
        others: tuple[Tensor, ...] = (k, w)
        if start is None:
            u0 = neuron.init.potential(x)
            others = (k, w, u0)
        elif start.mean is not None:
            others = (k, w, start.mean)
        # `others` has every tensor that the node would read; if one is on another device or fake, the node is not used.
        if norms is not None or choose_way(neuron.backend, neuron.spec, x, *others) == "fused":
            x, k, w = unwrapped(x), unwrapped(k), unwrapped(w)
            potential, membrane = asked(neuron) if neuron.taps else NOTHING
            own_u0: tuple[Tensor, ...] = () if u0 is None else (unwrapped(start_tensor(u0, x, dtype)),)
            job = fused_job(x, k, w, start or own_u0[0], neuron.spec, links, membrane, neuron.channels is not None)
            if job is not None:
                job.potential, job.conv = potential, conv
                if norms is None:
                    return _finish(neuron, x, job, u0, fused_scan(job, x, k, w, *own_u0))
                job.norms, job.spikes = norms.statistics, norms.bits
                # Bits replace the values of `extra`. An empty tensor takes the position of `extra` in the graph, so
                # that a second derivative still raises its error.
                job.source = None if norms.bits is None else trace_of(norms.tensors[2])
                job.repeated = norms.once is not None
                read = x if norms.once is None else unwrapped(norms.once)
                results = fused_scan(job, read, k, w, *(own_u0 or (None,)), *norms.tensors)
                return _finish(neuron, x, job, u0, results)
    assert norms is None and conv is None
    return _one_after_the_other(neuron, x, u0)


def _one_after_the_other(neuron: Neuron, x: Tensor, u0: Tensor | None) -> Tensor:
    """Computes `forward_layer` by `InitialPotential.potential`, `Neuron.run` and `InitialPotential.update`."""
    u0 = neuron.init.potential(x) if u0 is None else u0
    if neuron.training:
        neuron.limit_constants()
    result = neuron.watched_run(x, u0) if neuron.taps else neuron.run(x, u0)
    if neuron.training:
        neuron.init.update(result.active)
    return result.out


def asked(neuron: Neuron) -> tuple[bool, bool]:
    """Returns whether a tap of the neuron requests U[T], and whether one requests M."""
    taps = neuron.taps.values()
    membrane = any(tap.membrane for tap in taps)
    return membrane or any(tap.potential for tap in taps), membrane


def _finish(neuron: Neuron, x: Tensor, job: Job, u0: Tensor | None, results: Any) -> Tensor:
    """Passes the node's results to the taps, does what the node leaves out, and returns the output."""
    out, u, m = results if type(results) is tuple else (results, None, None)
    if neuron.taps:
        start = job.u0(out) if u0 is None else u0
        result = ScanResult(out, _NOT_WANTED if u is None else u, m, job.active(out))
        for tap in neuron.taps.values():
            tap.see(neuron, x, start, result)
    if neuron.training:
        # C++ has found a learned constant outside of its range; this is rare, so it is set back here.
        if not job.inside:
            neuron.limit_constants()
        if job.start is None:
            neuron.init.update(job.active(out))
    return out


def scan_layer(neuron: Neuron, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
    """Computes `Neuron.run`: the scan from ``u0``, with U[T] and, if ``membrane``, M."""
    dtype = COMPUTED_IN.get(x.dtype)
    spec, channelwise, backend = neuron.spec, neuron.channels is not None, neuron.backend
    if dtype is not None and not torch.compiler.is_compiling():
        k, w, links = layer_constants(neuron, dtype)
        if choose_way(backend, spec, x, k, w, u0) == "fused":
            return fused_result(x, u0, k, w, spec, links, membrane, channelwise)
    v, a = neuron.threshold, neuron.leak
    return lif_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise, backend=backend)


def must_be_called(module: nn.Module) -> bool:
    """True if a call of the module does more than its class's forward: hooks, a compiled form, its own forward."""
    changed = "forward" in module.__dict__ or is_compiled(module)
    return changed or bool(forward_hooks(module)) or has_other_hooks(module)

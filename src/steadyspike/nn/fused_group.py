"""Several pairs of norm and neuron as one node: ``neuron_i(norm_i(y_i))`` for parts y_i of the channels.

The q, k and v of an attention layer are three small layers on one input. Most of their time is the fixed cost of a
call. In one node every channel has the constants of its own layer, and each layer's statistics are those of its own
channels. Outputs, gradients and running statistics equal those of the layers one by one, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import Links, Statistics, fused_job
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.nn.evaluation_map import evaluation_map
from steadyspike.nn.fused import layer_constants, must_be_called
from steadyspike.nn.fused_norm import fits_layers, fits_tensors
from steadyspike.nn.initial_potential import ConstantInit, MPInit
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.tdbn import TDBN


def may_group(norms: Sequence[nn.Module], neurons: Sequence[nn.Module]) -> bool:
    """Returns True if the pairs can run as one node.

    All pairs need the same types and settings and no hooks. Taps may observe outputs and statistics, but not the
    current or the membrane.
    """
    norm, neuron = norms[0], neurons[0]
    if type(norm) is not TDBN or not isinstance(neuron, Neuron):
        return False
    for n, m in zip(norms, neurons):
        if type(n) is not TDBN or type(m) is not type(neuron) or must_be_called(m):
            return False
        assert isinstance(m, Neuron)
        alike = (n.training, n.eps, n.momentum, n.factor, n.channels) == (
            norm.training, norm.eps, norm.momentum, norm.factor, norm.channels,
        )  # fmt: skip
        alike = alike and (m.training, m.backend, m.channels) == (n.training, neuron.backend, neuron.channels)
        if not alike or m.spec != neuron.spec or type(m.init) not in (MPInit, ConstantInit):
            return False
        if any(tap.current or tap.membrane for tap in m.taps.values()) or not fits_layers(n, m):
            return False
    return True


def norm_neuron_group(norms: Sequence[nn.Module], neurons: Sequence[nn.Module], y: Tensor) -> Tensor | None:
    """Returns the outputs of all pairs, [T, B, C, ...], with their channels concatenated as in ``y``.

    Returns None if the node does not support this ``y``. Call it only for pairs that `may_group` has accepted.
    """
    norm, neuron = norms[0], neurons[0]
    assert isinstance(norm, TDBN) and isinstance(neuron, Neuron)
    if not fits_tensors(norm, neuron, y, groups=len(norms)):
        return None
    statistics = None
    # The node has one norm with all channels, so the parameters of the layers are concatenated.
    if norm.training:
        statistics = _statistics(norms, y)
        weight, bias = (torch.cat([getattr(n, name) for n in norms]) for name in ("weight", "bias"))
        weight = weight if norm.factor == 1.0 else weight * norm.factor
    else:
        weight, bias = (torch.cat(parts) for parts in zip(*(evaluation_map(n, y.shape[0]) for n in norms)))
    u0, k, w, links = _constants(neurons, y, norm.channels)
    job = fused_job(y, k, w, u0, neuron.spec, links, False, True)
    assert job is not None
    # No notes, because no layer reads the whole output: the callers split it by layer.
    job.notes, job.norms = False, (statistics, None)
    job.potential = any(tap.potential for m in neurons if isinstance(m, Neuron) for tap in m.taps.values())
    out = fused_scan(job, unwrapped(y), k, w, u0, weight, bias, None, None, None)
    out, u, _ = out if type(out) is tuple else (out, None, None)
    _finish(neurons, y, u0, ScanResult(out, out.new_empty(0) if u is None else u, None, job.active(out)), job.inside)
    return out


def _finish(neurons: Sequence[nn.Module], y: Tensor, u0: Tensor, result: ScanResult, inside: bool) -> None:
    """Runs taps, MP-Init's step and the limits of the constants, neuron by neuron."""
    size = y.shape[2] // len(neurons)
    for i, m in enumerate(neurons):
        assert isinstance(m, Neuron)
        part = slice(i * size, (i + 1) * size)
        active = result.active[:, part]
        # The node counts per channel. A layer with one mean for all channels needs the sum.
        active = active.sum(1, keepdim=True) if m.channels is None else active
        u = result.u[:, part] if result.u.numel() else result.u
        for tap in m.taps.values():
            tap.see(m, y[:, :, part], u0[part], ScanResult(result.out[:, :, part], u, None, active))
        if m.training:
            m.init.update(active)
            if not inside:
                m.limit_constants()


@torch.no_grad()
def _statistics(norms: Sequence[nn.Module], y: Tensor) -> Statistics:
    """Returns mean and 1 / sd of a training forward, and updates the running statistics of every norm."""
    means: list[Tensor] = []
    variances: list[Tensor] = []
    first = norms[0]
    assert isinstance(first, TDBN)
    for norm in norms:
        assert isinstance(norm, TDBN)
        norm.count_batch()
        for kept, running in zip((means, variances), norm.running()):
            kept.append(running)
    # One call updates the statistics of all norms. It needs them in one tensor, so they are copied there and back.
    moved = torch.cat(means), torch.cat(variances)
    if has_no_values(y):
        return Statistics(torch.empty_like(moved[0]), torch.empty_like(moved[0]))
    mean, var = torch.batch_norm_update_stats(y.flatten(0, 1), *moved, first.momentum)
    for kept, new in zip((means, variances), moved):
        for running, part in zip(kept, new.split(first.channels)):
            running.copy_(part)
    return Statistics(mean, torch.rsqrt(var + first.eps))


def _constants(neurons: Sequence[nn.Module], y: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor, Links]:
    """Returns U[0], and V and a or their parameters, each with a value per channel."""
    starts, ks, ws, links = [], [], [], []
    for m in neurons:
        assert isinstance(m, Neuron)
        starts.append(m.init.potential(y).to(y.dtype).expand(channels))
        k, w, own = layer_constants(m, y.dtype)
        ks.append(k)
        ws.append(w)
        links.append(own)
    k, to_v = _side_by_side(ks, [own[0] for own in links], channels)
    w, to_a = _side_by_side(ws, [own[1] for own in links], channels)
    return unwrapped(torch.cat(starts)), k, w, (to_v, to_a)


def _side_by_side(raws: list[Tensor], links: list[Any], channels: int) -> tuple[Tensor, Any]:
    """Returns one constant of all neurons: parameters, if all have the same link, otherwise values."""
    link = links[0]
    if any(other != link for other in links):
        raws, link = [raw if own is None else own.value(raw) for raw, own in zip(raws, links)], None
    return torch.cat([raw.expand(channels) for raw in raws]), link

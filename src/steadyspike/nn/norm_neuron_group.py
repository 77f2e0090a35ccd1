"""Several pairs of norm and neuron as one operator: ``neuron_i(norm_i(y_i))`` for parts y_i of the channels.

The q, k and v of an attention layer are three small layers on one input: most of their time is what a call takes in any
case. As one operator every channel has the constants of its own layer; each layer's statistics are those of its own
channels. Outputs, gradients and running statistics are those of the layers one by one, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import forward_hooks, has_other_hooks, unwrapped
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import fills_one_block
from steadyspike.kernels.scan.choose import choose_directly
from steadyspike.kernels.scan.contract import Affine, Call, Scan
from steadyspike.kernels.scan.noted import forward_with_notes
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.nn.evaluation_map import evaluation_map
from steadyspike.nn.initial_potential import ConstantInit, MPInit
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm_neuron import Settings, fits_layers, norm_and_scan, raw_constants
from steadyspike.nn.parametrization import Link


def untouched(module: nn.Module) -> bool:
    """True if the module runs its class's own forward, and no hook sees it."""
    return "forward" not in module.__dict__ and not forward_hooks(module) and not has_other_hooks(module)


def may_group(norms: Sequence[nn.Module], neurons: Sequence[nn.Module]) -> bool:
    """True if the pairs could run as one operator: alike, seen by nobody, and in training or without gradients."""
    norm, neuron = norms[0], neurons[0]
    if type(norm) is not TDBN or not isinstance(neuron, Neuron):
        return False
    for n, m in zip(norms, neurons):
        if type(n) is not TDBN or type(m) is not type(neuron) or not (untouched(n) and untouched(m)):
            return False
        assert isinstance(m, Neuron)
        alike = (n.training, n.eps, n.momentum, n.factor, n.channels) == (
            norm.training, norm.eps, norm.momentum, norm.factor, norm.channels,
        )  # fmt: skip
        alike = alike and (m.training, m.backend, m.channels) == (n.training, neuron.backend, neuron.channels)
        if not alike or m.spec != neuron.spec or m.taps or type(m.init) not in (MPInit, ConstantInit):
            return False
        if not fits_layers(n, m):
            return False
    if norm.training:
        return bool(norm.momentum is not None)
    return not torch.is_grad_enabled()


def norm_neuron_group(norms: Sequence[nn.Module], neurons: Sequence[nn.Module], y: Tensor) -> Tensor | None:
    """The outputs of all pairs, [T, B, C, ...] with their channels side by side as those of ``y``.

    None if `_fits_group` says that this ``y`` is not for the C++ scan. Only for pairs that `may_group` has accepted.
    """
    norm, neuron = norms[0], neurons[0]
    assert isinstance(norm, TDBN) and isinstance(neuron, Neuron)
    if not _fits_group(norm, neuron, y, len(norms)):
        return None
    if not norm.training:
        with torch.no_grad():
            return _evaluated(norms, neurons, y)
    mean, invstd = _statistics(norms, y)
    weight, bias = (torch.cat([getattr(n, name) for n in norms]) for name in ("weight", "bias"))
    weight = weight if norm.factor == 1.0 else weight * norm.factor
    u0, (k, to_v), (w, to_a) = _constants(neurons, y, norm.channels)
    settings = Settings(neuron, norm.eps, (to_v, to_a), torch.is_grad_enabled(), channelwise=True, notes=False)
    out, _, active = norm_and_scan(settings, None, mean, invstd, unwrapped(y), weight, bias, None, u0, k, w)
    for m, mine in zip(neurons, active.split(norm.channels, 1)):
        assert isinstance(m, Neuron) and isinstance(m.init, (MPInit, ConstantInit))
        m.init.update(mine.sum(1, keepdim=True) if m.channels is None else mine)
    return out


def _fits_group(norm: TDBN, neuron: Neuron, y: Tensor, count: int) -> bool:
    return (
        y.dtype in (torch.float32, torch.float64)
        and y.ndim >= 3
        and y.shape[2] == count * norm.channels
        and y.numel() >= 2 * y.shape[2]
        and norm.weight.dtype == y.dtype == norm.running_mean.dtype
        and y.device.type == "cpu"
        and runs_directly(y)
        and fills_one_block(y)
        and choose_directly(neuron.backend, y.dtype, neuron.spec) == "cpu"
    )


@torch.no_grad()
def _statistics(norms: Sequence[nn.Module], y: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, 1 / sd) of a training forward, which moves the running statistics of every norm."""
    means: list[Tensor] = []
    variances: list[Tensor] = []
    first = norms[0]
    assert isinstance(first, TDBN)
    for norm in norms:
        assert isinstance(norm, TDBN)
        norm.count_batch()
        for kept, running in zip((means, variances), norm.running()):
            kept.append(running)
    if has_no_values(y):
        return torch.empty_like(torch.cat(means)), torch.empty_like(torch.cat(means))
    moved = torch.cat(means), torch.cat(variances)
    mean, var = torch.batch_norm_update_stats(y.flatten(0, 1), *moved, first.momentum)
    for kept, new in zip((means, variances), moved):
        for running, part in zip(kept, new.split(first.channels)):
            running.copy_(part)
    return mean, torch.rsqrt(var + first.eps)


Raw = tuple[Tensor, Link | None]


def _constants(neurons: Sequence[nn.Module], y: Tensor, channels: int) -> tuple[Tensor, Raw, Raw]:
    """U[0], and V and a or what links compute them from, each with a value per channel."""
    starts, pairs = [], []
    for neuron in neurons:
        assert isinstance(neuron, Neuron)
        starts.append(neuron.init.potential(y).to(y.dtype).expand(channels))
        pairs.append(raw_constants(neuron, y))
    (k, to_v), (w, to_a) = (_side_by_side(list(found), channels) for found in zip(*pairs))
    return torch.cat(starts), (k, to_v), (w, to_a)


def _side_by_side(found: list[Raw], channels: int) -> Raw:
    """One constant of all neurons: parameters, if all have the same link, otherwise values."""
    link = found[0][1]
    if any(other != link for _, other in found):
        values, link = [raw if own is None else own.value(raw) for raw, own in found], None
    else:
        values = [raw for raw, _ in found]
    return torch.cat([value.expand(channels) for value in values]), link


def _evaluated(norms: Sequence[nn.Module], neurons: Sequence[nn.Module], y: Tensor) -> Tensor:
    """The same in evaluation mode, without gradients."""
    first, steps = neurons[0], y.shape[0]
    assert isinstance(first, Neuron)
    maps = zip(*(evaluation_map(norm, steps) for norm in norms))
    scale, shift = (torch.cat(parts, -1) for parts in maps)
    u0, *raws = _constants(neurons, y, y.shape[2] // len(neurons))
    v, a = (raw if link is None else link.limited_now(raw) for raw, link in raws)
    scan = Scan(y, u0, v, a, Call.of(first.spec, channelwise=True), Affine(scale, shift))
    return forward_with_notes(scan, None, None, potential=False)[0]

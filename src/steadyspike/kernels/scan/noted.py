"""A scan's forward that also notes what later layers use: its spikes as bits, and where gradients are needed."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from steadyspike.core.spec import FAMILIES
from steadyspike.core.surrogate import SURROGATES
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.kernels.scan.contract import Call, Forwarded, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.cpu.scan_plan import ScanPlan, plan_of
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.known import note_spikes
from steadyspike.kernels.spikes.needed import NeededPlaces
from steadyspike.kernels.spikes.packed import PackedSpikes

_BOUNDED = {code for code, surrogate in enumerate(SURROGATES.values()) if surrogate.bounded}


def wanted_words(scan: Scan, trained: bool, plan: ScanPlan | None = None) -> SpikeWords | None:
    """Room for the bits that `CpuBackend.forward` should write; with the needed places if ``trained``."""
    if scan.call.backend != "cpu" or scan.x.numel() == 0 or not (plan or plan_of(scan)).bits:
        return None
    return words_for(scan.x, trained, scan.call)


def words_for(x: Tensor, trained: bool, call: Call) -> SpikeWords:
    """`wanted_words`, where they are wanted."""
    return SpikeWords.like(x, needed=trained and call.codes[1] in _BOUNDED)


def note_words(call: Call, v: Tensor, words: SpikeWords, out: Tensor, node: Any, own_v: bool) -> None:
    """Notes ``words``, which the forward has written: spikes on its output, needed places on its autograd node."""
    level = _level(call, v, out, own_v)
    if level is not None:
        spikes = PackedSpikes(words.bits, level, out.shape, out.stride())
        spikes.__dict__["counted"] = words.counts
        if has_no_values(out):
            note_spikes(out, spikes)
        else:
            *counts, has_nan = words.counts.tolist()
            spikes.__dict__["total"] = sum(counts)
            if not has_nan:
                note_spikes(out, spikes)
    if words.needed is not None:
        NeededPlaces(words.needed).put_on(node)


def forward_with_notes(
    scan: Scan,
    words: SpikeWords | None,
    node: Any,
    *,
    potential: bool = True,
    plan: ScanPlan | None = None,
    own_v: bool = False,
) -> Forwarded:
    """The C++ forward, from within that of an autograd function whose ``ctx`` is ``node``; notes ``words``.

    node: None outside of autograd, for ``words`` without needed places. potential: False if nobody wants U[T]. plan: as
    in `CpuBackend.forward`. own_v: nobody will change the tensor V, which may be kept as the level of a spike.
    """
    backend = get_backend("cpu")
    assert isinstance(backend, CpuBackend)
    results = backend.forward(scan, words, potential=potential, plan=plan)
    if words is not None:
        note_words(scan.call, scan.v, words, results[0], node, own_v)
    return results


def _level(call: Call, v: Tensor, out: Tensor, own_v: bool) -> Tensor | None:
    """What a spike's output is, [1] or [C]; None if that is no finite number above 0."""
    if call.codes[0] != FAMILIES["trsg"]:
        return out.new_ones(1)
    level = v.detach() if v.requires_grad else v
    if not own_v or level.dtype != out.dtype:
        level = level.to(out.dtype, copy=True)
    if has_no_values(level):
        return level
    if level.numel() == 1:
        return level if 0 < level.item() < math.inf else None
    low, high = level.aminmax()  # NaN if there is one
    return level if low.item() > 0 and high.item() < math.inf else None

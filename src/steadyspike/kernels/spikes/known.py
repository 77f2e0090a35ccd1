"""Spikes that the scan has written as bits together with its output: nobody has to find them again from the values.

The bits are noted on the output's storage, so that every view of the output has them and they are freed with it. They
count as long as autograd has seen no change in place, and a sample of the values says so too: the sample finds changes
of the whole tensor that autograd does not see (``x.data``, numpy), but not that of a single element.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from steadyspike.core.torch_private import version
from steadyspike.kernels.layout import has_dense_steps
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.packed import PackedSpikes, elements_per_channel, pack_spikes
from steadyspike.kernels.spikes.words import can_pack, may_be

_NOTE = "steadyspike_spikes"


class _Noted(NamedTuple):
    spikes: PackedSpikes
    version: int | None  # None in inference mode, where changes in place are not counted
    address: int


def note_spikes(out: Tensor, spikes: PackedSpikes) -> None:
    """Notes that ``out`` [T, B, ...], time outermost, is ``spikes``; steps of a whole number of words only."""
    if spikes.size % 64 == 0:
        setattr(out.untyped_storage(), _NOTE, _Noted(spikes, _version(out), _address(out)))


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else version(x)


def _address(x: Tensor) -> int:
    return int(x.storage_offset()) if has_no_values(x) else x.data_ptr()


def spikes_per_step(out: Tensor) -> Tensor:
    """How many elements of each step of a scan's output [T, B, ...] are not 0, int64 [T].

    For those who get the output from the scan itself, before anybody could have changed it (taps): the number that the
    scan has counted holds in inference mode too. An output without a note is counted.
    """
    noted: _Noted | None = getattr(out.untyped_storage(), _NOTE, None)
    if noted is None or has_no_values(out) or noted.spikes.shape != out.shape:
        return out.detach().flatten(1).count_nonzero(1)
    unchanged = (noted.version, noted.address) == (_version(out), _address(out))
    return noted.spikes.counts if unchanged else out.detach().flatten(1).count_nonzero(1)


def known_spikes(x: Tensor) -> PackedSpikes | None:
    """The noted bits of ``x`` [T, B, C, ...], which may be the output seen in another shape; None if there are none."""
    if x.is_inference() or not can_pack(x):
        return None
    noted: _Noted | None = getattr(x.untyped_storage(), _NOTE, None)
    if noted is None or noted.version != _version(x) or noted.address != _address(x):
        return None
    spikes, size = noted.spikes, x.numel() // x.shape[0]
    if spikes.shape.numel() != x.numel() or size % 64 or not has_dense_steps(x):
        return None
    if x.shape[0] > 1 and x.stride(0) != size:
        return None
    inner = elements_per_channel(x.shape, x.stride())
    if spikes.level.numel() > 1:
        same = x.ndim > 2 and x.shape[2] == spikes.level.numel()
        if not same or inner != elements_per_channel(spikes.shape, spikes.stride):
            return None
    if spikes.level.dtype != x.dtype:
        return None
    if not has_no_values(x) and not may_be(x, spikes.words, spikes.level, inner):
        return None
    found = PackedSpikes(spikes.words.view(x.shape[0], -1), spikes.level, x.shape, x.stride())
    found.__dict__["total"] = spikes.total
    return found


def find_spikes(x: Tensor, level: Tensor | None = None) -> PackedSpikes | None:
    """`pack_spikes`, without looking at every value where the scan has noted them."""
    return known_spikes(x) or pack_spikes(x, level)

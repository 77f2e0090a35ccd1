"""`StreamWindow`: collects MP-Init's statistics (Algorithm 1) of a layer that `scan` runs step by step.

A whole sequence in one call ends with the call, so `forward` updates the running mean itself. A layer cannot detect the
end of a loop over `scan`: the caller marks it with ``with ss.window(model)``. Inside the window, every scan in training
mode adds the neurons that fired, and the end of the window updates the mean once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steadyspike.core.reference_scan import active_statistics
from steadyspike.core.state import LIFState
from steadyspike.core.transforms import is_transformed
from steadyspike.nn.checkpoint import recomputing
from steadyspike.nn.initial_potential import InitialPotential

if TYPE_CHECKING:
    from steadyspike.nn.neuron import Neuron

NO_WINDOW = (
    "scan updates MP-Init's running mean only in a window, so the start of a sequence never changes here; write the "
    "training loop over time inside `with ss.window(model):`"
)


@dataclass(frozen=True, eq=False)
class StreamPart:
    """A stream up to one of its states.

    fired: bool, [B, ...], whether a neuron fired since the window began
    u: U after the last step
    """

    window: StreamWindow
    fired: Tensor
    u: Tensor


class StreamWindow:
    """The streams of one layer in an open window, each stored with its last state.

    A forked state makes a second stream.
    """

    def __init__(self) -> None:
        self._ends: dict[StreamPart, None] = {}

    def follow(self, before: LIFState | None, after: LIFState, out: Tensor) -> None:
        """Adds the output [T, B, ...] of a scan that led from ``before`` (None: a new stream) to ``after``."""
        # An output above 0 is a spike, also for V S.
        fired = (out.detach() > 0).any(0)
        past = None if before is None else before.part
        # The stream continues: its new end replaces the old one, so that it is counted once. A forked state keeps its
        # own end.
        if isinstance(past, StreamPart) and past.window is self:
            self._ends.pop(past, None)
            fired = fired | past.fired
        after.part = StreamPart(self, fired, after.u.detach())
        self._ends[after.part] = None

    def close(self, channelwise: bool) -> Tensor | None:
        """Returns the statistics of all streams, as `ScanResult.active`; None if nothing was scanned."""
        ends, self._ends = self._ends, {}
        parts = [active_statistics(part.u, part.fired, channelwise) for part in ends]
        return torch.stack(parts).sum(0) if parts else None


def follow_stream(layer: Neuron, before: LIFState | None, after: LIFState, out: Tensor) -> None:
    """Counts a scan of ``layer`` in its open window; warns if it trains MP-Init and no window is open."""
    # Only an initial potential that overrides `update` learns from statistics.
    learns_start = layer.training and type(layer.init).update is not InitialPotential.update
    if not learns_start or recomputing() or is_transformed():
        return
    if layer.stream_window is not None:
        layer.stream_window.follow(before, after, out)
    elif not torch.compiler.is_compiling():
        warnings.warn(NO_WINDOW, stacklevel=3)


def close_stream(layer: Neuron) -> None:
    """Ends the open window of ``layer`` and updates its initial potential."""
    window, layer.stream_window = layer.stream_window, None
    active = None if window is None else window.close(layer.channels is not None)
    if active is not None and layer.training:
        layer.init.update(active)

"""`LIFState`: the state of a streaming scan, which the caller passes from one call to the next."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn


class LIFState:
    """The membrane potential of one layer between two calls of ``scan``.

    u: U[t], [B, ...]
    step: number of time steps processed so far


    A state belongs to the layer that returned it and can be used once. Using it again would repeat the past, and raises
    an error. `fork` makes a copy that can be used too.

    part: what the open `ss.window` has counted of this stream so far; None outside a window
    """

    __slots__ = ("_layer", "_spent", "part", "step", "u")

    def __init__(self, u: Tensor, step: int, layer: nn.Module) -> None:
        self.u, self.step = u, step
        self.part: Any = None
        self._layer = weakref.ref(layer)
        self._spent = False

    def __repr__(self) -> str:
        return f"LIFState(step={self.step}, shape={tuple(self.u.shape)}, dtype={self.u.dtype}, device={self.u.device})"

    def fork(self) -> LIFState:
        """Returns a second, unused state at the same point in time."""
        return self._copy(self.u)

    def detach(self) -> LIFState:
        """Returns a `fork` without connection to the autograd graph (truncated backpropagation)."""
        return self._copy(self.u.detach())

    def _copy(self, u: Tensor) -> LIFState:
        layer = self._layer()
        if layer is None:
            raise RuntimeError("the layer of this state no longer exists; start a new stream with state=None")
        copied = LIFState(u, self.step, layer)
        copied.part = self.part
        return copied

    def take(self, x: Tensor, layer: nn.Module) -> Tensor:
        """Returns U for the next scan of ``x`` [T, B, ...] by ``layer``, and marks the state as used."""
        if self._layer() is not layer:
            raise ValueError("this state was made by another layer; pass the state that this layer's own scan returned")
        if self._spent:
            raise ValueError(
                f"this state (step {self.step}) was used already; continue from the state that scan returned, or call "
                "state.fork() before the first use to branch"
            )
        if tuple(self.u.shape) != tuple(x.shape[1:]):
            raise ValueError(
                f"the state is for inputs of shape [T, {', '.join(map(str, self.u.shape))}] but x is {list(x.shape)}; "
                "start a new stream with state=None when the batch or the size changes"
            )
        if self.u.device != x.device:
            raise ValueError(f"the state is on {self.u.device} but x is on {x.device}; start a new stream there")
        self._spent = True
        return self.u

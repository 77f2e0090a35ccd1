"""`ReLU`: an ordinary activation at the position of a neuron, for networks whose weights start a spiking network."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.nn.neuron import Neuron


class ReLU(Neuron):
    """An ordinary activation without potential and spikes: O[t] = max(I[t], 0). [T, B, ...] -> [T, B, ...].

    A network of these learns in fewer steps than a spiking one. Its weights are a good start for the same network with
    spiking neurons, which have tensors of the same names and shapes (`train.start` of a recipe).
    """

    spiking: ClassVar[bool] = False

    def __init__(self, channels: int | None = None, *, backend: str = "auto") -> None:
        super().__init__(ScanSpec("as", reset=Reset("none"), decay_input=False), "zero", channels, backend)

    @property
    def threshold(self) -> Tensor:
        """1, for code that reads V of every layer; it has no effect and is not part of the weights."""
        return torch.ones(1)

    @property
    def leak(self) -> Tensor:
        """1, as `threshold`."""
        return torch.ones(1)

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        nothing = torch.zeros(2, self.channels or 1, dtype=torch.float64, device="cpu")
        return ScanResult(x.relu(), x[-1], x if membrane else None, nothing)

    def spikes(self, out: Tensor) -> Tensor:
        raise TypeError("a ReLU has no spikes: its output is any number that is not negative")

    def extra_repr(self) -> str:
        return "" if self.channels is None else f"channels={self.channels}"

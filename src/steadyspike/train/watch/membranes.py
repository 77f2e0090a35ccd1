"""Histograms of the membranes, one per neuron layer and evaluation, for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.train.files.loggers import Histogram

BINS = 48


class MembraneWatch:
    """Collects U[T] / V, the potential after the last time step, in the first batch of an evaluation.

    It has taps only from `start` to `take`, because a tap that requests U[T] makes the scan write it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = neurons(model)
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}

    def start(self) -> None:
        """Called before an evaluation."""
        for name, layer in self.layers.items():
            layer.taps["membranes"] = Tap(self._see(name), current=False)

    def _see(self, name: str) -> Callable[[Neuron, Tensor, Tensor, ScanResult], None]:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not layer.spiking or name in self._seen:
                return
            with torch.no_grad():
                u = result.u.float().flatten() / layer.threshold.float().mean()
                ends = torch.stack([u.min(), u.max(), u.sum(), u.square().sum()])
                self._seen[name] = (torch.histc(u.nan_to_num(0.0, 0.0, 0.0), BINS), ends)  # `take` drops such layers

        return see

    def take(self) -> dict[str, Histogram]:
        """Returns the histograms of this evaluation by layer, for layers whose potentials are finite."""
        self.close()
        histograms = {}
        for name, (counts, ends) in self._seen.items():
            low, high, total, squares = ends.tolist()
            if math.isfinite(squares) and high > low:
                histograms[name] = Histogram(low, high, counts.tolist(), total, squares)
        self._seen = {}
        return histograms

    def close(self) -> None:
        for layer in self.layers.values():
            layer.taps.pop("membranes", None)

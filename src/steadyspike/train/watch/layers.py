"""Measures every neuron layer: firing rates, silent neurons, norms of gradients, histograms of membranes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.torch_private import tensor_norms
from steadyspike.core.widest import widest
from steadyspike.kernels.spikes.note import spikes_per_step
from steadyspike.nn.checkpoint import recomputing
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.nn.neurons.relu import ReLU
from steadyspike.nn.sync import sum_over_processes
from steadyspike.train.files.loggers import Histogram


def _groups(module: nn.Module, waiting: list[nn.Parameter], groups: list[list[nn.Parameter]]) -> None:
    """Returns the parameters in registration order, in groups; each group ends with a neuron layer."""
    if isinstance(module, Neuron):
        groups.append([*waiting, *module.parameters()])
        waiting.clear()
        return
    waiting += module.parameters(recurse=False)
    for child in module.children():
        _groups(child, waiting, groups)


class GradientWatch:
    """Norms of gradients, per neuron layer (its own parameters and those before it) and for the rest."""

    def __init__(self, model: nn.Module) -> None:
        self.groups: list[str] = list(neurons(model))
        by_layer: list[list[nn.Parameter]] = []
        rest: list[nn.Parameter] = []
        _groups(model, rest, by_layer)
        if rest:
            self.groups.append("head")
            by_layer.append(rest)
        self.parameters: list[nn.Parameter] = []
        self._group_of: list[int] = []
        seen: set[int] = set()
        for index, parameters in enumerate(by_layer):
            for p in parameters:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append(p)
                    self._group_of.append(index)
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

    @torch.no_grad()
    def norms(self, *also: Tensor) -> tuple[list[float], list[float]]:
        """The current norm per group, and the values of further scalars, with one read from the device for all."""
        there = [(p.grad, index) for p, index in zip(self.parameters, self._group_of) if p.grad is not None]
        scalars = [*tensor_norms([grad for grad, _ in there]), *(a.detach() for a in also)]
        if len({scalar.dtype for scalar in scalars}) > 1:
            scalars = [scalar.to(widest(scalar.device)) for scalar in scalars]
        values: list[float] = torch.stack(scalars).tolist() if scalars else []
        squares = [0.0] * len(self.groups)
        for norm, (_, index) in zip(values, there):
            squares[index] += norm * norm
        return [math.sqrt(square) for square in squares], values[len(there) :]

    def add(self, norms: list[float]) -> None:
        self.sums = [total + norm for total, norm in zip(self.sums, norms)]
        self.steps += 1

    def means(self) -> dict[str, float]:
        return {group: total / max(self.steps, 1) for group, total in zip(self.groups, self.sums)}

    def reset(self) -> None:
        self.sums = [0.0] * len(self.groups)
        self.steps = 0


class LayerRow(NamedTuple):
    """One neuron layer over one epoch; None if it was not measured or does not exist.

    rate: mean of S in evaluation
    rates: the same per time step
    silent: share of neurons without a spike in a training window
    threshold, tau, running_mean: at the end (mean over channels)
    gradient: mean norm of the gradient of the layer's own parameters and of the weights that feed it
    """

    layer: str
    rate: float | None
    rates: list[float]
    silent: float | None
    threshold: float | None
    tau: float | None
    running_mean: float | None
    gradient: float | None


class LayerWatch:
    """Counts spikes of every neuron layer by taps.

    In training the scan returns how many neurons fired. These counts are collected and added up many at a time, because
    even a few operations per layer and step would cost time. They are whole numbers, so the order of addition does not
    matter.
    """

    _MANY = 512  # tensors of a few numbers each

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.layers = neurons(model)
        self._fired = torch.zeros(len(self.layers), dtype=torch.float64)
        self._seen = [0] * len(self.layers)
        self._aside: list[tuple[int, Tensor]] = []
        self.rates = torch.zeros(len(self.layers), steps + 1, dtype=torch.float64)
        for index, layer in enumerate(self.layers.values()):
            layer.taps["watch"] = Tap(self._see(index), current=False, potential=False)

    def _see(self, index: int) -> Callable[[Neuron, Tensor, Tensor, ScanResult], None]:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not layer.spiking or recomputing():
                return
            if layer.training:
                self._seen[index] += result.out[0].numel()
                self._aside.append((index, result.active))
                if len(self._aside) >= self._MANY:
                    self._add_up()
                return
            with torch.no_grad():
                if self.rates.device != result.out.device:
                    self.rates = self.rates.to(result.out.device, widest(result.out.device))
                fired = spikes_per_step(result.out)
                self.rates[index, : len(fired)] += fired
                self.rates[index, -1] += result.out[0].numel()

        return see

    @torch.no_grad()
    def _add_up(self) -> None:
        if not self._aside:
            return
        counts = torch.cat([active for _, active in self._aside], 1)[1]
        places = torch.tensor([index for index, active in self._aside for _ in range(active.shape[1])])
        self._fired = self._fired.to(counts).index_add(0, places.to(counts.device), counts)
        self._aside = []

    @property
    def active(self) -> Tensor:
        """Returns [layers, 2]: how many neurons fired in a training window, and how many there were, in this epoch."""
        self._add_up()
        return torch.stack([self._fired, self._fired.new_tensor(self._seen)], 1)

    @active.setter
    def active(self, counts: Tensor) -> None:
        self._fired, self._seen = counts[:, 0].clone(), [int(n) for n in counts[:, 1].tolist()]
        self._aside = []

    def silent(self) -> list[float | None]:
        """Returns the share of silent neurons per layer over the training forwards so far, over all processes."""
        rows = sum_over_processes(self.active).tolist()
        return [1 - fired / count if count else None for fired, count in rows]

    def step_rates(self) -> list[list[float]]:
        """Returns the firing rate per layer and time step over the evaluation forwards so far.

        Empty if there were none.
        """
        rows = sum_over_processes(self.rates).tolist()
        return [[fired / row[-1] for fired in row[:-1]] if row[-1] else [] for row in rows]

    def reset(self) -> None:
        self.active = torch.zeros_like(self.active)
        self.rates = self.rates.new_zeros(self.rates.shape)

    def close(self) -> None:
        for layer in self.layers.values():
            layer.taps.pop("watch", None)


def layer_rows(watch: LayerWatch, gradients: GradientWatch) -> list[LayerRow]:
    """Returns the epoch's table of layers, and a last row for the gradient of the head."""
    silent, rates, norms = watch.silent(), watch.step_rates(), gradients.means()
    rows = []
    for (name, layer), quiet, steps in zip(watch.layers.items(), silent, rates):
        mean = getattr(layer.init, "running_mean", None)
        with torch.no_grad():
            leak = layer.leak.cpu().double().mean()  # not on the device, because some devices have no float64
            threshold = float(layer.threshold.cpu().double().mean())
            tau = float(1 / leak) if leak > 0 else float("inf")
        rows.append(
            LayerRow(
                name,
                sum(steps) / len(steps) if steps else None,
                steps,
                quiet,
                None if isinstance(layer, ReLU) else threshold,
                None if isinstance(layer, ReLU) else tau,
                None if mean is None else float(mean.cpu().double().mean()),
                norms.get(name),
            )
        )
    if "head" in norms:
        rows.append(LayerRow("head", None, [], None, None, None, None, norms["head"]))
    return rows


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

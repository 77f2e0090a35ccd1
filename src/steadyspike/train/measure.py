"""What an epoch is summed up in: counts on the device, added over processes at its end, kept in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.lif import ScanResult
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.nn.recompute import recomputing
from steadyspike.nn.sync import summed

Predict = Callable[[Tensor], Tensor]


class Scores(NamedTuple):
    """loss: mean over samples; accuracy: in percent, after 1, 2, ..., T time steps (training: after T only)."""

    loss: float
    accuracy: list[float]
    samples: int

    def record(self) -> dict[str, Any]:
        """For result.json, which has no word for a loss that is not finite."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {"accuracy": self.accuracy, "loss": loss, "samples": self.samples}


class ScoreSums:
    """Loss and correct answers, summed over samples: [loss, samples, correct after each counted step]."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.values = torch.zeros(2 + steps, dtype=torch.float64)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, target: Tensor, predict: Predict) -> None:
        """loss: mean of the batch; logits [T, B, K]; counts the last ``steps`` prefixes of time."""
        total = logits.shape[0]
        prefixes = range(total - self.steps + 1, total + 1)
        correct = [(predict(logits[:t]).argmax(-1) == target).sum() for t in prefixes]
        batch = len(target)
        row = torch.stack([loss.detach().double() * batch, *(c.double() for c in correct)])
        if self.values.device != row.device:
            self.values = self.values.to(row.device)
        self.values[1] += batch
        self.values[0] += row[0]
        self.values[2:] += row[1:]

    def scores(self, everyone: bool = True) -> Scores:
        """Means over all samples of all processes, or of this one alone."""
        loss, samples, *correct = (summed(self.values) if everyone else self.values).tolist()
        count = max(samples, 1.0)
        return Scores(loss / count, [100 * c / count for c in correct], int(samples))

    def reset(self) -> None:
        # New, not zeroed: what was made in inference mode cannot be changed outside it.
        self.values = self.values.new_zeros(self.values.shape)


class LayerRow(NamedTuple):
    """One neuron layer over one epoch; None where it was not measured or does not exist.

    rate: mean of S in evaluation; rates: the same per time step; silent: share of neurons without a spike in a training
    window; threshold, tau, running_mean: at the end (mean over channels); gradient: mean norm of the gradient of the
    layer's own parameters and of the weights that feed it.
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
    """Counts spikes of every neuron layer by taps. Training costs a few scalars per layer: the scan knows who fired."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.layers = neurons(model)
        self.active = torch.zeros(len(self.layers), 2, dtype=torch.float64)
        self.rates = torch.zeros(len(self.layers), steps + 1, dtype=torch.float64)
        self._new: list[Tensor] = []
        for place, layer in enumerate(self.layers.values()):
            layer.taps["watch"] = Tap(self._see(place))

    def _see(self, place: int) -> Callable[[Neuron, Tensor, Tensor, ScanResult], None]:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not layer.spiking or recomputing():
                return
            with torch.no_grad():
                if layer.training:
                    self._on(result.u.device)
                    self.active[place, 0] += result.active[1].sum()
                    self.active[place, 1] += result.u.numel()
                else:
                    self._on(result.u.device)
                    out = result.out.flatten(1)
                    self.rates[place, : len(out)] += out.count_nonzero(1)
                    self.rates[place, -1] += out.shape[1]

        return see

    def _on(self, device: torch.device) -> None:
        if self.active.device != device:
            self.active, self.rates = self.active.to(device), self.rates.to(device)

    def silent(self) -> list[float | None]:
        """Share of silent neurons per layer over the training forwards so far, over all processes."""
        rows = summed(self.active).tolist()
        return [1 - fired / count if count else None for fired, count in rows]

    def step_rates(self) -> list[list[float]]:
        """Firing rate per layer and time step over the evaluation forwards so far; empty where there were none."""
        rows = summed(self.rates).tolist()
        return [[fired / row[-1] for fired in row[:-1]] if row[-1] else [] for row in rows]

    def reset(self) -> None:
        self.active, self.rates = (t.new_zeros(t.shape) for t in (self.active, self.rates))

    def close(self) -> None:
        for layer in self.layers.values():
            layer.taps.pop("watch", None)


def _groups(module: nn.Module, waiting: list[nn.Parameter], found: list[list[nn.Parameter]]) -> None:
    """Walks ``module`` in registration order: a neuron closes the group of parameters that came before it."""
    if isinstance(module, Neuron):
        found.append([*waiting, *module.parameters()])
        waiting.clear()
        return
    waiting += module.parameters(recurse=False)
    for child in module.children():
        _groups(child, waiting, found)


class GradientWatch:
    """Norms of gradients, per neuron layer (its own parameters and those before it) and for what follows the last."""

    def __init__(self, model: nn.Module) -> None:
        self.groups: list[str] = list(neurons(model))
        found: list[list[nn.Parameter]] = []
        rest: list[nn.Parameter] = []
        _groups(model, rest, found)
        if rest:
            self.groups.append("head")
            found.append(rest)
        self.parameters: list[nn.Parameter] = []
        self._place: list[int] = []
        seen: set[int] = set()
        for place, parameters in enumerate(found):
            for p in parameters:
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    self.parameters.append(p)
                    self._place.append(place)
        self._index: Tensor | None = None
        self.sums = torch.zeros(len(self.groups), dtype=torch.float64)
        self.steps = 0

    @torch.no_grad()
    def norms(self) -> Tensor:
        """Norm per group now, [groups], float64."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if not grads:
            return torch.zeros_like(self.sums)
        squares = torch.stack(torch._foreach_norm(grads)).double().square()  # type: ignore[arg-type]
        if self._index is None or len(self._index) != len(grads):
            places = [place for p, place in zip(self.parameters, self._place) if p.grad is not None]
            self._index = torch.tensor(places, device=squares.device)
        return torch.zeros(len(self.groups), dtype=torch.float64, device=squares.device).index_add_(
            0, self._index, squares
        ).sqrt()  # fmt: skip

    def add(self, norms: Tensor) -> None:
        if self.sums.device != norms.device:
            self.sums = self.sums.to(norms.device)
        self.sums += norms
        self.steps += 1

    def means(self) -> dict[str, float]:
        return dict(zip(self.groups, (self.sums / max(self.steps, 1)).tolist()))

    def reset(self) -> None:
        self.sums.zero_()
        self.steps = 0


def layer_rows(watch: LayerWatch, gradients: GradientWatch) -> list[LayerRow]:
    """The epoch's table of layers, and a last row for the gradient of the head."""
    silent, rates, norms = watch.silent(), watch.step_rates(), gradients.means()
    rows = []
    for (name, layer), quiet, steps in zip(watch.layers.items(), silent, rates):
        mean = getattr(layer.init, "running_mean", None)
        with torch.no_grad():
            leak = layer.leak.double().mean()
            threshold = float(layer.threshold.double().mean())
            tau = float(1 / leak) if leak > 0 else float("inf")
        rows.append(
            LayerRow(
                name,
                sum(steps) / len(steps) if steps else None,
                steps,
                quiet,
                threshold,
                tau,
                None if mean is None else float(mean.double().mean()),
                norms.get(name),
            )
        )
    if "head" in norms:
        rows.append(LayerRow("head", None, [], None, None, None, None, norms["head"]))
    return rows

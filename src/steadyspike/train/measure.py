"""What an epoch is summed up in: counts on the device, added over processes at its end, kept in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.lif import ScanResult
from steadyspike.nn.checkpointed_forward import recomputing
from steadyspike.nn.neuron import Neuron, Tap, neurons
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
        self._batch, self._count = 0, torch.zeros((), dtype=torch.float64)  # the batch, also as a tensor

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, target: Tensor, predict: Predict) -> None:
        """loss: mean of the batch; logits [T, B, K]; counts the last ``steps`` prefixes of time."""
        total, batch = logits.shape[0], len(target)
        if batch != self._batch or self._count.device != logits.device:
            self._batch, self._count = batch, torch.tensor(float(batch), dtype=torch.float64, device=logits.device)
            self.values = self.values.to(logits.device)
        prefixes = range(total - self.steps + 1, total + 1)
        correct = [(predict(logits[:t]).argmax(-1) == target).sum(dtype=torch.float64) for t in prefixes]
        self.values += torch.stack([loss.detach() * self._count, self._count, *correct])

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
    """Counts spikes of every neuron layer by taps.

    The scan knows who fired: in training its counts are put aside and added up many at a time, since a few operations
    per layer and step would be felt. They are whole numbers, so the order does not matter.
    """

    _MANY = 512  # tensors of a few numbers each

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.layers = neurons(model)
        self._fired = torch.zeros(len(self.layers), dtype=torch.float64)
        self._seen = [0] * len(self.layers)
        self._aside: list[tuple[int, Tensor]] = []
        self.rates = torch.zeros(len(self.layers), steps + 1, dtype=torch.float64)
        for place, layer in enumerate(self.layers.values()):
            layer.taps["watch"] = Tap(self._see(place))

    def _see(self, place: int) -> Callable[[Neuron, Tensor, Tensor, ScanResult], None]:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if not layer.spiking or recomputing():
                return
            if layer.training:
                self._seen[place] += result.u.numel()
                self._aside.append((place, result.active))
                if len(self._aside) >= self._MANY:
                    self._add_up()
                return
            with torch.no_grad():
                if self.rates.device != result.u.device:
                    self.rates = self.rates.to(result.u.device)
                out = result.out.flatten(1)
                self.rates[place, : len(out)] += out.count_nonzero(1)
                self.rates[place, -1] += out.shape[1]

        return see

    @torch.no_grad()
    def _add_up(self) -> None:
        if not self._aside:
            return
        counts = torch.cat([active for _, active in self._aside], 1)[1]
        places = torch.tensor([place for place, active in self._aside for _ in range(active.shape[1])])
        self._fired = self._fired.to(counts.device).index_add(0, places.to(counts.device), counts)
        self._aside = []

    @property
    def active(self) -> Tensor:
        """[layers, 2]: neurons that fired in a training window, of how many, so far in this epoch and process."""
        self._add_up()
        return torch.stack([self._fired, self._fired.new_tensor(self._seen)], 1)

    @active.setter
    def active(self, counts: Tensor) -> None:
        self._fired, self._seen = counts[:, 0].clone(), [int(n) for n in counts[:, 1].tolist()]
        self._aside = []

    def silent(self) -> list[float | None]:
        """Share of silent neurons per layer over the training forwards so far, over all processes."""
        rows = summed(self.active).tolist()
        return [1 - fired / count if count else None for fired, count in rows]

    def step_rates(self) -> list[list[float]]:
        """Firing rate per layer and time step over the evaluation forwards so far; empty where there were none."""
        rows = summed(self.rates).tolist()
        return [[fired / row[-1] for fired in row[:-1]] if row[-1] else [] for row in rows]

    def reset(self) -> None:
        self.active = torch.zeros_like(self.active)
        self.rates = self.rates.new_zeros(self.rates.shape)

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
        self.sums = [0.0] * len(self.groups)
        self.steps = 0

    @torch.no_grad()
    def norms(self, *also: Tensor) -> tuple[list[float], list[float]]:
        """Norm per group now, and the values of scalars that are wanted too: one read from the device for all."""
        there = [(p.grad, place) for p, place in zip(self.parameters, self._place) if p.grad is not None]
        scalars = [*(torch._foreach_norm([grad for grad, _ in there]) if there else ()), *(a.detach() for a in also)]
        if len({scalar.dtype for scalar in scalars}) > 1:
            scalars = [scalar.double() for scalar in scalars]
        values: list[float] = torch.stack(scalars).tolist() if scalars else []
        squares = [0.0] * len(self.groups)
        for norm, (_, place) in zip(values, there):
            squares[place] += norm * norm
        return [math.sqrt(square) for square in squares], values[len(there) :]

    def add(self, norms: list[float]) -> None:
        self.sums = [total + norm for total, norm in zip(self.sums, norms)]
        self.steps += 1

    def means(self) -> dict[str, float]:
        return {group: total / max(self.steps, 1) for group, total in zip(self.groups, self.sums)}

    def reset(self) -> None:
        self.sums = [0.0] * len(self.groups)
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

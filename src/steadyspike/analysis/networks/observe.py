"""`observe`: runs a network on batches and stores the distributions of every neuron layer per time step.

Only counts are stored, so that a large network and many batches fit into memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from steadyspike.analysis.statistics.autocorrelation import ljung_box
from steadyspike.analysis.statistics.distributions import (
    active_neurons,
    range_edges,
    shares,
    step_counts,
    threshold_edges,
    total_variation,
)
from steadyspike.core.reference_scan import ScanResult, per_channel
from steadyspike.nn.membrane_health import tapped
from steadyspike.nn.neuron import Neuron, Tap
from steadyspike.nn.probe import after_reset, chosen_layers

TESTED = 20_000  # neurons per layer and batch that are tested for independence
# The bins of a layer's input are computed from its first EDGE_SAMPLES samples, or from fewer if these already have
# EDGE_VALUES values.
EDGE_SAMPLES, EDGE_VALUES = 64, 2**23


@dataclass
class LayerSteps:
    """The activity of one neuron layer at every time step, over all batches.

    membrane: counts of U[t] / V of active neurons
    current: counts of the input I[t] of active neurons

    Both are [2, T, bins + 2], for the even and the odd samples. Bins of the membrane are in units of V.
    """

    name: str
    threshold: float
    current_edges: Tensor
    membrane: Tensor
    current: Tensor
    spikes: Tensor  # [T], sums
    inside: Tensor  # [2, T]: potentials of active neurons within V and within 2 V
    neurons: int = 0
    active: int = 0
    tested: int = 0
    independent: int = 0
    constant: int = 0
    broken: str = ""  # which values are NaN or infinite, for example "input"; counts are then meaningless
    # Batches that wait until the bins are computed: (index of the first sample, input, active neurons).
    waiting: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """False if the layer has NaN or infinite values."""
        return not self.broken

    @property
    def steps(self) -> int:
        return self.membrane.shape[1]

    @property
    def membrane_shares(self) -> Tensor:
        """Returns the distribution of U[t] / V, [T, bins + 2]."""
        return shares(self.membrane.sum(0))

    @property
    def current_shares(self) -> Tensor:
        """Returns the distribution of I[t], [T, bins + 2]."""
        return shares(self.current.sum(0))

    @property
    def rates(self) -> Tensor:
        """Returns the firing rate of all neurons at every step, [T]."""
        return self.spikes / max(self.neurons, 1)

    @property
    def bounded(self) -> Tensor:
        """Returns the share of active neurons' potentials within V and within 2 V, [2, T]."""
        return self.inside / max(self.active, 1)

    @property
    def independence(self) -> float:
        """The share of tested neurons whose input does not reject independence at lag 1 (5 %); NaN without a test."""
        return self.independent / self.tested if self.tested else float("nan")

    def floor(self, what: str) -> float:
        """The noise floor of the distances of "membrane" or "current": even against odd samples, mean over steps."""
        even, odd = shares(getattr(self, what))
        return float(total_variation(even, odd).mean()) / 2**0.5


@dataclass
class Observation:
    """All spiking layers by name, and the outputs of the network [T, N, ...] with their targets, if there are any.

    targets is None if they are not tensors that can be concatenated.

    logits is None for a network that does not return its time steps, such as one that averages over them.
    """

    layers: dict[str, LayerSteps] = field(default_factory=dict)
    logits: Tensor | None = None
    targets: Tensor | None = None
    samples: int = 0
    batches: int = 0


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's own mode is restored at the end."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def observe(
    model: nn.Module,
    batches: Iterable[Tensor | tuple[Tensor, Tensor]],
    *,
    layers: str | Sequence[str] | None = None,
    timesteps: int | None = None,
    independence: bool = False,
) -> Observation:
    """Runs ``model`` on the batches, each x or (x, targets), in evaluation mode.

    layers: names or patterns as in `probe`
    timesteps: passed to the model, for networks that repeat a still image
    independence: also test the inputs of active neurons (needs 3 steps)
    """
    observation, outputs, targets = Observation(), [], []
    sizes: list[tuple[int, int]] = []  # (steps, samples) of the layers that ran on the present batch

    def make(name: str) -> Tap:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            if layer.spiking and result.m is not None:
                sizes.append((x.shape[0], x.shape[1]))
                # Sample numbers count over the whole observation, so that even and odd samples are the same for batches
                # of every size. A layer may see a sample as several, for example as patches.
                index = observation.samples * x.shape[1] // max(sizes[0][1], 1)
                _add(observation.layers, name, layer, x, result, index, independence)
                observation.layers[name].broken = observation.layers[name].broken or _broken(layer, x, u0, result)

        return Tap(see, membrane=True)

    with evaluating(model), tapped(model, f"observe {id(observation)}", make, only=chosen_layers(model, layers)):
        for batch in batches:
            x, target = _parts(batch)
            sizes.clear()
            observation.batches += 1
            out = _run(model, x, timesteps)
            if sizes:
                observation.samples += sizes[0][1]
            if isinstance(out, Tensor) and out.ndim >= 2 and tuple(out.shape[:2]) in sizes:
                outputs.append(out)
            if target is not None:
                targets.append(_labels(target))
    for one in observation.layers.values():
        _count_waiting(one)
    if outputs:
        observation.logits = torch.cat(outputs, 1)
    labelled = [one for one in targets if one is not None]
    if labelled and len(labelled) == len(targets) and len({one.shape[1:] for one in labelled}) == 1:
        observation.targets = torch.cat(labelled)
    return observation


def _parts(batch: object) -> tuple[Tensor, object]:
    """Returns input and targets of a batch; None for missing targets."""
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if len(parts) not in (1, 2):
        raise TypeError(f"a batch is a tensor or a pair (tensor, targets), got {len(parts)} parts")
    if not isinstance(parts[0], Tensor):
        raise TypeError(f"a batch is a tensor or a pair (tensor, targets), got {type(parts[0]).__name__}")
    return parts[0], parts[1] if len(parts) == 2 else None


def _labels(target: object) -> Tensor | None:
    """Returns targets as a tensor [N, ...], also if they are numbers in a list; None for others, such as boxes."""
    try:
        return torch.atleast_1d(torch.as_tensor(target))
    except (TypeError, ValueError, RuntimeError):
        return None


def _run(model: nn.Module, x: Tensor, timesteps: int | None) -> object:
    if timesteps is None:
        return model(x)
    try:
        inspect.signature(model.forward).bind(x, timesteps)
    except TypeError:
        raise ValueError("timesteps: the model's forward takes the input only, so it decides the steps") from None
    return model(x, timesteps)


def _add(
    layers: dict[str, LayerSteps],
    name: str,
    layer: Neuron,
    x: Tensor,
    result: ScanResult,
    index: int,
    independence: bool,
) -> None:
    """Adds a batch to the observation; ``place`` is the index of its first sample."""
    assert result.m is not None
    if not x.shape[1]:
        raise ValueError("a batch has no samples")
    if name in layers and layers[name].steps != len(x):
        raise ValueError(f"batches have different numbers of time steps: {layers[name].steps} and {len(x)}")
    spikes = layer.spikes(result.out)
    v = per_channel(layer.threshold, x.ndim - 1).to(result.m.dtype)
    u = (after_reset(layer, result.m, spikes) / v).cpu()
    x, spikes = x.detach().cpu(), spikes.detach().cpu()
    active = active_neurons(spikes)
    edges = threshold_edges(1.0)
    if name not in layers:
        steps, bins = len(x), len(edges) + 1
        zeros = torch.zeros(2, steps, bins, dtype=torch.float64)
        layers[name] = LayerSteps(
            name, float(layer.threshold.double().mean()), torch.empty(0), zeros, zeros.clone(),
            torch.zeros(steps, dtype=torch.float64), torch.zeros(2, steps, dtype=torch.float64),
        )  # fmt: skip
    seen = layers[name]
    for half in range(2):
        own = slice((half + index) % 2, None, 2)
        seen.membrane[half] += step_counts(u[:, own], edges, active[own])
    first = max(1, min(EDGE_SAMPLES, EDGE_VALUES * x.shape[1] // max(x.numel(), 1)))
    if len(seen.current_edges) or x.shape[1] + sum(one.shape[1] for _, one, _ in seen.waiting) >= first:
        seen.waiting.append((index, x, active))
        _count_waiting(seen, first)
    else:  # a copy: the network may write into its own tensor later
        seen.waiting.append((index, x.clone(), active))
    seen.spikes += (spikes > 0).flatten(1).sum(1)
    for index, factor in enumerate((1.0, 2.0)):
        seen.inside[index] += ((u.abs() <= factor) & active).flatten(1).sum(1)
    seen.neurons += active.numel()
    seen.active += int(active.sum())
    if independence:
        p = ljung_box(x[:, active][:, :TESTED])
        seen.constant += int(p.isnan().sum())
        seen.tested += int((~p.isnan()).sum())
        seen.independent += int((p > 0.05).sum())


def _broken(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> str:
    """Returns which value of a layer is NaN or infinite; "" if none is.

    The input is checked first: if it is wrong, an earlier layer caused it.

    Buffers are not checked: a folded MPBN has an infinite level for a channel that always or never fires.
    """
    values = {"input": x, "initial potential": u0, "threshold": layer.threshold, "leak": layer.leak}
    values |= {f"parameter {name}": value for name, value in layer.named_parameters()}
    if result.m is not None:
        values["membrane"] = result.m
    return next((name for name, value in values.items() if not value.isfinite().all()), "")


def _count_waiting(seen: LayerSteps, first: int = EDGE_SAMPLES) -> None:
    """Counts the inputs of the waiting batches; if there are no bins yet, makes them from the ``first`` samples."""
    if not len(seen.current_edges):
        parts, left = [], first
        for _, x, _ in seen.waiting:
            parts.append(x[:, :left].flatten(1))
            left = max(0, left - x.shape[1])
        seen.current_edges = range_edges(torch.cat(parts, 1).nan_to_num())
    for index, x, active in seen.waiting:
        for half in range(2):
            own = slice((half + index) % 2, None, 2)
            seen.current[half] += step_counts(x[:, own], seen.current_edges, active[own])
    seen.waiting.clear()

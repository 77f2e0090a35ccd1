"""`analyse`: does a network suffer from temporal covariate shift? One number per layer, one verdict.

report = ss.analyse(model, batch)       # batch: x, or (x, targets)
print(report)                           # a table of all layers
report.verdict                          # "steady", "drifts", "drifts strongly"; "unclear", "silent", "saturated"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.analysis.networks.observe import LayerSteps, Observation, observe
from steadyspike.analysis.statistics.distributions import against_last
from steadyspike.nn.initial_potential import MPInit
from steadyspike.nn.neuron import neurons

# Thresholds for the mean over layers. The paper calls a distance below 0.1 negligible, and reports more than 0.3 at t =
# 1 for a start at zero.
STEADY, STRONG = 0.1, 0.3
SATURATED = 0.99  # the firing rate from which spikes carry no information about the membrane
UNTRAINED = (
    "Analyse a trained network (before training, the norms lack the statistics that evaluation uses), and see "
    "ss.check_model(model, x)."
)


class LayerShift(NamedTuple):
    """The drift of one layer.

    All distances are total variation distances in 0..1 from the last step, over active neurons.

    shift: the layer's number, the largest distance of the membrane over the steps before the last, minus its noise
        floor
    membrane, current: the distances of U[t] and of the input I[t] per step, [T]
    floor, current_floor: the distances that chance would give
    rates: firing rate per step [T]
    active: share of neurons that fired in the window
    finite: False if its input, its start, its constants or its membrane are NaN or infinite
    broken: which of them
    """

    name: str
    shift: float
    membrane: Tensor
    current: Tensor
    floor: float
    current_floor: float
    rates: Tensor
    active: float
    finite: bool = True
    broken: str = ""

    @property
    def saturated(self) -> bool:
        """True if (almost) every neuron fires at every step."""
        return self.finite and float(self.rates.min()) >= SATURATED

    @property
    def judged(self) -> bool:
        """True if the layer can be judged: it fires, is silent at times, and its values are finite."""
        return self.finite and self.active > 0 and not self.saturated

    @property
    def rate_change(self) -> float:
        """The firing rate of the first step relative to that of the last, minus 1; NaN if the layer is silent."""
        first, last = float(self.rates[0]), float(self.rates[-1])
        return first / last - 1 if last > 0 else float("nan")


@dataclass(frozen=True)
class ShiftReport:
    """The result of `analyse`; ``print`` shows it as a table.

    shift: mean of the layers' numbers, over layers that are neither silent nor saturated
    agreement: share of samples for which the first step alone predicts the class that the mean over all steps predicts;
        None if the output is not class scores
    """

    layers: tuple[LayerShift, ...]
    shift: float
    verdict: str
    advice: str
    agreement: float | None
    samples: int

    def __str__(self) -> str:
        width = max([len("layer"), *(len(layer.name) for layer in self.layers)])
        lines = [f"{'layer':{width}}  shift  floor  input  firing rate, first to last step    active"]
        for one in sorted(self.layers, key=lambda one: bool(one.finite and one.active and not one.saturated)):
            if not one.finite:
                lines.append(f"{one.name:{width}}  its {one.broken} is NaN or infinite")
                continue
            if not one.active:
                lines.append(f"{one.name:{width}}  silent: no neuron fired")
                continue
            if one.saturated:
                lines.append(f"{one.name:{width}}  saturated: every neuron fires at every step")
                continue
            rates = _shown(one.rates.tolist())
            inputs = float(one.current[:-1].max()) - one.current_floor
            lines.append(
                f"{one.name:{width}}  {one.shift:5.3f}  {one.floor:5.3f}  {max(inputs, 0.0):5.3f}  {rates:32}  "
                f"{100 * one.active:5.1f} %"
            )
        counted = sum(one.judged for one in self.layers)
        agreement = "" if self.agreement is None else (
            f"; the first step alone predicts the final class for {100 * self.agreement:.1f} % of samples"
        )  # fmt: skip
        lines += [
            "",
            "shift: distance of a step's potentials from the last step's (total variation, 0 to 1), minus the floor,",
            "which is the noise of this many samples; input: the same for the current; active: neurons that fired",
            f"{self.verdict}: {f'mean shift {self.shift:.3f}' if counted else 'nothing to judge'} "
            f"over {counted} of {_layers(len(self.layers))}, {self.samples} samples" + agreement,
            self.advice,
        ]
        return "\n".join(lines)


def _layers(count: int) -> str:
    return f"{count} layer" if count == 1 else f"{count} layers"


def _shown(rates: list[float]) -> str:
    """Shows at most five rates: the first three and the last two."""
    texts = [f"{rate:.3f}" for rate in rates]
    return " ".join(texts if len(texts) <= 5 else [*texts[:3], "..", *texts[-2:]])


def analyse(
    model: nn.Module,
    batch: Tensor | Sequence[Any] | Iterable[Tensor | Sequence[Any]],
    *,
    layers: str | Sequence[str] | None = None,
    timesteps: int | None = None,
) -> ShiftReport:
    """Measures how far membrane, input and firing rate of every layer drift over the time steps of one window.

    batch: an input of the model, or (x, targets), or an iterable of such batches. Two tensors in a tuple or list are
    always (x, targets), as a DataLoader yields them; for two inputs write [(x, None), (y, None)]. A few hundred samples
    are enough; the noise floor shows whether they are.
    layers: names or patterns (``"layer1.*"``)
    timesteps: for networks that repeat a still image, another number of steps than their own

    The model is not changed.
    """
    if not isinstance(batch, (Tensor, Iterable)):
        raise TypeError(
            f"batch must be a tensor, a pair (x, targets) or an iterable of them, got {type(batch).__name__}"
        )
    batches: Iterable[Any] = [batch] if isinstance(batch, Tensor) or _is_one(batch) else batch
    seen = observe(model, batches, layers=layers, timesteps=timesteps)
    return report_of(seen, start_of(model))


def _is_one(batch: Iterable[Any]) -> bool:
    """Returns whether a tuple or list is one batch, such as (x, targets), and not a sequence of batches."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[0], Tensor):
        return False
    x, other = batch[:2]
    if len(batch) == 2 and isinstance(other, Tensor) and other.ndim == x.ndim and other.shape[0] not in x.shape[:2]:
        raise ValueError(
            f"two tensors are (x, targets), but they have different numbers of samples: {list(x.shape)} and "
            f"{list(other.shape)}; for two inputs write [(x, None), (y, None)]"
        )
    # A list of three or more is a list of batches if they look alike. If it is one batch of so many parts, `observe`
    # raises an error.
    alike = all(isinstance(part, Tensor) and part.ndim == x.ndim for part in batch)
    return len(batch) == 2 or isinstance(batch, tuple) or not alike


Start = Literal["mp", "mp, never trained", "other"]


def start_of(model: nn.Module) -> Start:
    """Returns what the neuron layers start from: MP-Init's mean, such a mean that is still 0, or something else."""
    starts = [layer.init for layer in neurons(model).values() if layer.spiking]
    means = [start.running_mean for start in starts if isinstance(start, MPInit)]
    if not starts or len(means) < len(starts):
        return "other"
    return "mp" if any(bool(mean.any()) for mean in means) else "mp, never trained"


def report_of(seen: Observation, start: Start) -> ShiftReport:
    """Returns the report of an observation; ``start`` is what the layers start from, for the advice."""
    if not seen.layers:
        none = "the model has no spiking neuron layer that ran" if seen.batches else "no batch was given"
        hint = " (layers of another library are seen after ss.convert(model))" if seen.batches else ""
        raise ValueError(f"{none}{hint}: nothing to analyse")
    if any(layer.steps < 2 for layer in seen.layers.values()):
        raise ValueError(
            "a drift over time needs at least 2 time steps, but a layer ran only 1: give the layers a whole sequence "
            "at once"
        )
    rows = tuple(layer_shift(layer) for layer in seen.layers.values())
    counted = [row for row in rows if row.judged]
    shift = sum(row.shift for row in counted) / len(counted) if counted else float("nan")
    floor = sum(row.floor for row in counted) / len(counted) if counted else float("nan")
    verdict, advice = _verdict(shift, floor, start) if counted else _nothing_to_judge(rows)
    left_out = _left_out(rows)
    if counted and len(rows) - len(counted) > len(counted):
        verdict, advice = "unclear", f"Not judged: {left_out}. {UNTRAINED}"
    elif left_out and counted:
        advice += f" Not counted: {left_out}."
    broken = next((row for row in rows if not row.finite), None)
    if broken is not None:
        verdict = "unclear"
        advice = f"The {broken.broken} of layer '{broken.name}' is NaN or infinite: look at "
        before = "the data and at ss.check_model(model, x) first."
        advice += before if broken.broken == "input" else "its values in model.state_dict() first."
    return ShiftReport(rows, shift, verdict, advice, _agreement(seen.logits), seen.samples)


def layer_shift(seen: LayerSteps) -> LayerShift:
    """Returns the drift of one observed layer."""
    membrane, current = against_last(seen.membrane_shares), against_last(seen.current_shares)
    floor = seen.floor("membrane")
    active = seen.active / max(seen.neurons, 1)
    shift = max(0.0, float(membrane[:-1].max()) - floor) if seen.active else 0.0
    return LayerShift(
        seen.name, shift, membrane, current, floor, seen.floor("current"), seen.rates, active, seen.finite, seen.broken
    )


def _left_out(rows: Sequence[LayerShift]) -> str:
    """Returns which layers are not judged, as the middle of a sentence; "" if all are."""
    silent, saturated = sum(row.finite and not row.active for row in rows), sum(row.saturated for row in rows)
    reasons = [
        *([f"{silent} of {_layers(len(rows))} in which no neuron fired"] if silent else []),
        *([f"{saturated} of {_layers(len(rows))} in which every neuron fires at every step"] if saturated else []),
    ]
    return " and ".join(reasons)


def _nothing_to_judge(rows: Sequence[LayerShift]) -> tuple[str, str]:
    """Returns the advice for a network in which no layer both fires and is silent at times."""
    if not any(row.saturated for row in rows):
        return "silent", f"No layer fired: there is nothing to judge. {UNTRAINED}"
    if all(row.saturated for row in rows):
        return "saturated", (
            "Every neuron fires at every step: there is nothing to judge. Look at the scale of the input and at the "
            "thresholds, and see ss.check_model(model, x)."
        )
    return "unclear", f"Not judged: {_left_out(rows)}. {UNTRAINED}"


def _verdict(shift: float, floor: float, start: Start) -> tuple[str, str]:
    if floor > STEADY:
        return "unclear", f"The noise floor is {floor:.2f}: analyse more samples."
    if shift < STEADY:
        return "steady", "The membrane has nearly the same distribution at every step."
    verdict = "drifts strongly" if shift >= STRONG else "drifts"
    if start == "mp, never trained":
        return verdict, (
            "MP-Init's mean is still 0 in every layer, because there was no forward in training mode: so far this is "
            "a start at zero. Train the network, then analyse it again."
        )
    if start == "mp":
        return verdict, (
            "It starts from MP-Init's mean and still drifts: a single constant cannot give the distribution its "
            "spread, and in few steps there is no time for it; see docs/theory.md."
        )
    return verdict, "The distribution is different in early and late steps: train with init='mp' (MP-Init)."


def _agreement(logits: Tensor | None) -> float | None:
    if logits is None or logits.ndim != 3 or logits.shape[-1] < 2 or not logits.isfinite().all():
        return None
    first, final = logits[0].argmax(-1), logits.mean(0).argmax(-1)
    return float((first == final).to(torch.float64).mean())

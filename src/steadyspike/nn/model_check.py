"""`check_model`: finds common mistakes in a spiking network that cause no error.

Examples: a neuron that scans the batch axis as if it were time (the network still trains; this happened in a published
model); a layer that never fires, so that training stays at chance level; a parameter without gradient. Each check has a
name, a verdict and, if it fails, the name of the layer.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.kernels.spikes.note import spikes_per_step
from steadyspike.nn.batch_invariance import first_batch_leak
from steadyspike.nn.initial_potential import MPInit
from steadyspike.nn.input_convention import find_batch_dim
from steadyspike.nn.membrane_health import non_finite_layers, tapped
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.nn.settings_notes import settings_notes
from steadyspike.nn.stream_window import NO_WINDOW

UNTRAINED = "before training the norms have no statistics yet, so check an untrained network after model.train()"


@dataclass(frozen=True)
class Check:
    """The result of one check; ``layer`` is the name of the module or parameter concerned, if there is one.

    note: no check failed (``ok`` is True), but in our measurements these settings train worse than others
    """

    name: str
    ok: bool
    message: str
    layer: str | None = None
    note: bool = False


@dataclass
class CheckReport:
    """The results of all checks: ``print(report)`` shows them, ``report.require()`` raises if one failed."""

    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [c for c in self.checks if not c.ok]

    @property
    def notes(self) -> list[Check]:
        """Returns recommendations: settings that trained worse than others in our measurements."""
        return [c for c in self.checks if c.note]

    def require(self) -> CheckReport:
        """Raises a RuntimeError that lists the failed checks; returns the report itself if there are none."""
        if not self.ok:
            raise RuntimeError("model check failed:\n" + "\n".join(f"  {c.name}: {c.message}" for c in self.failures))
        return self

    def __str__(self) -> str:
        words = [("note" if c.note else "pass") if c.ok else "FAIL" for c in self.checks]
        rows = [f"{word}  {c.name:<14} {c.message}" for word, c in zip(words, self.checks)]
        return "\n".join(rows)


def check_model(
    model: nn.Module, example: Tensor, *, batch_dim: int | None = None, tolerance: float = 1e-6
) -> CheckReport:
    """Checks a spiking network on one example batch and returns a report of what passed and what failed.

    example: ``[T, B, ...]`` with B >= 2, or a static batch ``[B, ...]`` for networks that make their own time steps.
        The output is ``[T, B, ...]``, or ``[B, classes]`` if the network averages.
    batch_dim: the axis of the batch, 1 or 0; None: found by trying (`nn.input_convention`)


    The checks run on a copy in float64. The model itself does not change, and rounding cannot cause different spikes in
    a batch of B and a batch of one. The copy's running statistics are computed from the example, so that evaluation
    mode is meaningful for an untrained network too. Only the firing rates of a model in evaluation mode are measured
    with its own statistics and precision, as `ss.analyse` does.
    """
    batch_dim = _batch_dim(model, example, batch_dim)
    if example.ndim <= batch_dim or example.shape[batch_dim] < 2:
        raise ValueError(f"the example needs a batch of at least 2 on axis {batch_dim}, got {list(example.shape)}")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=re.escape(NO_WINDOW))  # the check "statistics" names the layers
        work, x, problem = _prepare(model, example)
        if problem is not None:
            return CheckReport([Check("output", False, problem)])
        _add_time_axis(work, x, batch_dim)
        exact = next(work.parameters(), torch.zeros((), dtype=torch.float64)).dtype == torch.float64
        evaluated = None if model.training else copy.deepcopy(model).eval()
        return _run_checks(work, x, batch_dim, tolerance if exact else max(tolerance, 1e-4), evaluated, example)


def _batch_dim(model: nn.Module, example: Tensor, batch_dim: int | None) -> int:
    """Returns the axis of the batch; 1 for a model that does not run on the example, which the checks report."""
    try:
        return find_batch_dim(model, example, batch_dim)
    except ValueError:
        if batch_dim is not None:
            raise
        return 1


def _prepare(model: nn.Module, example: Tensor) -> tuple[nn.Module, Tensor, str | None]:
    """(copy, input, None): a calibrated copy in float64, or in the model's own precision if it cannot run in float64.

    The third value is an error message if a training forward fails in both.
    """
    problem = None
    for double in (True, False):
        work = copy.deepcopy(model)
        x = example.detach().clone()
        if double:
            work = work.double()
            x = x.double() if x.is_floating_point() else x
        for module in work.modules():
            if isinstance(getattr(module, "sync", None), bool):
                module.sync = False  # type: ignore[assignment]  # other processes may not be checking
        try:
            _calibrate(work, x)
            return work, x, None
        except Exception as error:
            problem = f"a training forward fails: {type(error).__name__}: {error}"
    return work, x, problem


@torch.no_grad()
def _add_time_axis(model: nn.Module, x: Tensor, batch_dim: int) -> None:
    """Adds a time axis of length 1 to the output [B, classes] of a network that averages over time.

    The batch axis is the one that becomes shorter when a sample is left out.
    """
    model.eval()
    try:
        full, less = model(x), model(x.narrow(batch_dim, 0, x.shape[batch_dim] - 1))
    except Exception:
        return  # the checks report this error
    if isinstance(full, Tensor) and full.ndim == less.ndim == 2 and full.shape[0] == less.shape[0] + 1:
        model.register_forward_hook(lambda module, args, out: out.unsqueeze(0))
        model.averages_over_time = True  # type: ignore[assignment]


def _averages(model: nn.Module) -> bool:
    return getattr(model, "averages_over_time", False) is True


Step = Callable[[nn.Module, Tensor, int, float], list[Check]]


def _run_checks(
    model: nn.Module, x: Tensor, batch_dim: int, tolerance: float, evaluated: nn.Module | None, example: Tensor
) -> CheckReport:
    """Runs all checks in order; skips checks that would fail for the same reason as an earlier one.

    evaluated: the model as it was given, if it was in evaluation mode; its activity on ``example`` is checked
    """
    report = CheckReport()

    def _check_activity(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
        return _activity(model.train(), x) if evaluated is None else _activity(evaluated, example)

    def run(*steps: Step) -> bool:
        """Runs a check; returns False as soon as one fails."""
        for step in steps:
            try:
                verdicts = step(model, x, batch_dim, tolerance)
            except Exception as error:
                name = step.__name__.removeprefix("_check_")
                verdicts = [Check(name, False, f"{type(error).__name__}: {error}")]
            report.checks.extend(verdicts)
            if not all(v.ok for v in verdicts):
                return False
        return True

    # A wrong output or a random result would make the checks after it fail for the same reason.
    if run(_check_output):
        if run(_check_repeatable):
            run(_check_batch)
            run(_check_causal)
            run(_check_statistics)
        run(_check_activity)
        run(_check_gradients)
        run(_check_settings)
    run(_check_range)
    run(_check_kernel)
    return report


@torch.no_grad()
def _calibrate(model: nn.Module, x: Tensor) -> None:
    """Sets running statistics (batch norms, MP-Init) from ``x``, by a few training forwards with momentum 1."""
    followers: list[Any] = [m for m in model.modules() if isinstance(getattr(m, "momentum", None), float)]
    before = [m.momentum for m in followers]
    for m in followers:
        m.momentum = 1.0
    model.train()
    for _ in range(3):
        model(x)
    for m, momentum in zip(followers, before):
        m.momentum = momentum


@torch.no_grad()
def _evaluate(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    return model(x)


def _check_output(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    with non_finite_layers(model, "check") as bad:
        out = _evaluate(model, x)
    checks = []
    if not isinstance(out, Tensor):
        return [Check("output", False, f"the model returns {type(out).__name__}, not a tensor [T, B, ...]")]
    batch = x.shape[batch_dim]
    timed = batch_dim == 0 or out.shape[0] == x.shape[0] or _averages(model)
    shaped = out.ndim >= 2 and out.shape[1] == batch and timed
    expected = f"[{x.shape[0] if batch_dim else 'T'}, {batch}, ...] or [{batch}, classes]"
    shape = list(out.shape[1:] if _averages(model) else out.shape)
    # A model that makes its own time steps gets [B, ...]; its output has the batch on axis 1 or 0.
    static = not shaped and batch_dim == 1 and x.shape[0] in out.shape[:2]
    hint = "; if the model makes its own time steps, the example is [B, ...]: use batch_dim=0" if static else ""
    checks.append(Check("output", shaped, f"output is {shape}, {'as' if shaped else 'not'} {expected}{hint}"))
    layer, what = bad[0] if bad else (None, None)
    finite = bool(out.isfinite().all()) and not bad
    message = "everything is finite" if finite else f"layer '{layer}': {what}" if layer else "the output is not finite"
    checks.append(Check("finite", finite, message, layer))
    return checks


def _check_repeatable(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    def seeded(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return _evaluate(model, x)

    first = seeded(0)
    if not torch.equal(first, seeded(0)):
        return [Check("repeatable", False, "two calls on the same input differ: a state is kept between calls")]
    if not torch.equal(first, seeded(1)):
        return [Check("repeatable", False, "the output depends on random numbers in evaluation mode")]
    return [Check("repeatable", True, "two calls agree bit for bit")]


def _check_batch(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    model.eval()
    leak = first_batch_leak(model, x, batch_dim, tolerance)
    if leak is None:
        return [Check("batch", True, "a batch of B equals B batches of one")]
    where = f"layer '{leak.layer}': " if leak.layer else ""
    what = f"sample {leak.sample} depends on the rest of its batch (error {leak.error:.2g})"
    message = f"{where}{what}; is a batch axis scanned as time?"
    return [Check("batch", False, message, leak.layer)]


def _check_causal(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    if batch_dim == 0 or x.shape[0] < 2 or _averages(model):
        return []
    out = _evaluate(model, x)
    changed = x.clone()
    changed[-1] = changed[-1].flip(0) + 1.0
    early = _evaluate(model, changed)[:-1]
    error = float((early - out[:-1]).abs().max())
    ok = error <= tolerance * (1 + float(out.abs().max()))
    text = "no output depends on a later input" if ok else f"an output depends on a later input (error {error:.2g})"
    return [Check("causal", ok, text + ("" if ok else "; is time on the first axis everywhere?"))]


def _check_statistics(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    """Checks that MP-Init's mean moves in training. It does not move in a loop over `scan` without a window."""
    model.train()
    layers = {n: m for n, m in neurons(model).items() if m.training and isinstance(m.init, MPInit)}
    kept = {name: layer.running_mean.clone() for name, layer in layers.items()}
    probe = 0.123  # a mean that no batch has by chance
    for layer in layers.values():
        layer.running_mean.fill_(probe)
    # Twice, because a converted neuron ends a window only when the next one starts.
    rates = [firing_rates(model, x) for _ in range(2)]
    still = [name for name, layer in layers.items() if bool((layer.running_mean == probe).all())]
    for name, mean in kept.items():
        layers[name].running_mean.copy_(mean)
    return [
        Check("statistics", False, f"layer '{name}' fires but MP-Init's mean does not change: {NO_WINDOW}", name)
        for name in still
        if rates[0].get(name, 0) > 0 or rates[1].get(name, 0) > 0
    ]


def _check_gradients(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        return [Check("gradient", True, "the model has no trainable parameters")]
    with torch.no_grad():
        # If a residual branch starts at zero (a norm's weight), the weights before that norm have zero gradients.
        for p in trained.values():
            if not p.any():
                p.uniform_(0.05, 0.15)
    model.train()
    model.zero_grad(set_to_none=True)
    out = model(x)
    # A different weight for every output, so that gradients cannot cancel in a sum (softmax, norm).
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
    (out * weight.sin()).sum().backward()
    checks = []
    for name, p in trained.items():
        if p.grad is None:
            checks.append(Check("gradient", False, f"parameter '{name}' gets no gradient", name))
        elif not p.grad.isfinite().all():
            checks.append(Check("gradient", False, f"parameter '{name}' gets a gradient that is not finite", name))
        elif not p.grad.any():
            checks.append(Check("gradient", False, f"parameter '{name}' gets a gradient of zeros", name))
    model.zero_grad(set_to_none=True)
    return checks or [Check("gradient", True, "every trainable parameter gets a finite gradient that is not zero")]


def firing_rates(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The mean of S of every neuron layer, by name, over all its calls in one forward in the model's current mode."""
    counts: dict[str, tuple[float, int]] = {}

    def make(name: str) -> Tap:
        def see(layer: Neuron, current: Tensor, u0: Tensor, result: ScanResult) -> None:
            if layer.spiking:
                spikes, places = counts.get(name, (0.0, 0))
                counts[name] = spikes + float(spikes_per_step(result.out).sum()), places + result.out.numel()

        return Tap(see, current=False, potential=False)

    with torch.no_grad(), tapped(model, "rates", make):
        model(x)
    return {name: spikes / max(1, places) for name, (spikes, places) in counts.items()}


def dead_layers(rates: dict[str, float]) -> list[Check]:
    """Returns a failed check for every layer that never or always fires."""
    checks = []
    for name, rate in rates.items():
        if rate == 0.0:
            message = (
                f"layer '{name}' never fires, so the layers after it get no input; put a norm before it, "
                "enlarge the weights that feed it, or lower its threshold"
            )
            checks.append(Check("activity", False, message, name))
        elif rate == 1.0:
            checks.append(Check("activity", False, f"layer '{name}' fires at every step in every neuron", name))
    return checks


def _activity(model: nn.Module, x: Tensor) -> list[Check]:
    """Checks firing rates in the model's current mode."""
    rates = firing_rates(model, x)
    if not rates:
        return [Check("activity", True, "no SteadySpike neuron layers found")]
    low, high = min(rates.values()), max(rates.values())
    mode = "training" if model.training else "evaluation"
    hint = "" if model.training else f"; measured in evaluation mode: {UNTRAINED}"
    dead = [replace(check, message=check.message + hint) for check in dead_layers(rates)]
    return dead or [Check("activity", True, f"firing rates from {low:.3f} to {high:.3f} in {mode} mode")]


def _check_settings(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    """Gives notes only, so it always passes; without notes it shows nothing."""
    return [Check("settings", True, text, note=True) for text in settings_notes(model, x)]


def _check_range(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    checks = []
    for name, layer in neurons(model).items():
        v, a = layer.threshold, layer.leak
        if not (v.isfinite().all() and (v.abs() > 1e-4).all() and (v.abs() < 1e4).all()):
            checks.append(
                Check("range", False, f"layer '{name}': threshold {v.tolist()} has collapsed or run away", name)
            )
        if not ((a == 0) | ((a > 1e-6) & (a < 1 - 1e-5))).all():
            taus = (1 / a).tolist()
            checks.append(Check("range", False, f"layer '{name}': tau {taus} has collapsed or run away", name))
    return checks or [Check("range", True, "thresholds and taus are in range")]


def _check_kernel(model: nn.Module, x: Tensor, batch_dim: int, tolerance: float) -> list[Check]:
    """Lists the layers that run on the slower reference. This is not a mistake, so the check always passes."""
    reasons = {name: reason for name, layer in neurons(model).items() if (reason := layer.why_no_kernel()) is not None}
    if not reasons:
        return [Check("kernel", True, "compiled kernels can compute every neuron layer")]
    return [Check("kernel", True, f"layer '{n}' runs on the reference: {reason}", n) for n, reason in reasons.items()]

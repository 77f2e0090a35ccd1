"""`health`: a context in which a non-finite membrane potential raises an error with the layer's name.

It checks the membrane and not the loss, because spikes can hide a bad potential: an infinite potential gives either a
normal spike or none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.neuron import Neuron, Tap, neurons


class HealthError(RuntimeError):
    """Raised if a neuron layer has non-finite values; ``layer`` is its name in the model."""

    def __init__(self, layer: str, what: str) -> None:
        super().__init__(f"layer '{layer}': {what}")
        self.layer, self.what = layer, what

    def __reduce__(self) -> tuple[type[HealthError], tuple[str, str]]:
        return HealthError, (self.layer, self.what)


def non_finite(layer: Neuron, x: Tensor, result: ScanResult) -> str | None:
    """Returns a sentence that names what is not finite in this forward; None if everything is finite."""
    for name, value in (("threshold", layer.threshold), ("1/tau", layer.leak)):
        if not torch.isfinite(value).all():
            return f"its {name} is not finite"
    if torch.isfinite(result.u).all() and torch.isfinite(result.out).all():
        return None
    if not torch.isfinite(x).all():
        steps = (~torch.isfinite(x.detach().flatten(1))).any(1).nonzero().flatten().tolist()
        return f"the input current is not finite at time step {', '.join(str(t + 1) for t in steps[:8])}"
    return "the membrane potential is not finite although its input is"


@contextmanager
def tapped(
    model: nn.Module, key: str, make: Callable[[str], Tap], only: Container[str] | None = None
) -> Iterator[dict[str, Neuron]]:
    """Attaches ``make(name) -> Tap`` to every neuron layer (or those in ``only``), and removes it at the end."""
    layers = {name: layer for name, layer in neurons(model).items() if only is None or name in only}
    for name, layer in layers.items():
        if key in layer.taps:
            raise RuntimeError(f"layer '{name}' already has a tap {key!r}; leave that context first")
        layer.taps[key] = make(name)
    try:
        yield layers
    finally:
        for layer in layers.values():
            layer.taps.pop(key, None)


def _calls_with(report: Callable[[str, str], None]) -> Callable[[str], Tap]:
    """Makes taps that call ``report(name, what)`` for every forward with non-finite values."""

    def make(name: str) -> Tap:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            what = non_finite(layer, x, result)
            if what is not None:
                report(name, what)

        return Tap(see)

    return make


@contextmanager
def non_finite_layers(model: nn.Module, key: str) -> Iterator[list[tuple[str, str]]]:
    """Yields a list to which every forward adds the layers with non-finite values: (name, what), in running order."""
    bad: list[tuple[str, str]] = []
    with tapped(model, key, _calls_with(lambda name, what: bad.append((name, what)))):
        yield bad


@contextmanager
def health(model: nn.Module) -> Iterator[None]:
    """Raises `HealthError` with the layer's name as soon as a membrane of ``model`` is not finite.

    with ss.health(model):
        loss = criterion(model(x), y)
    """

    def fail(name: str, what: str) -> None:
        raise HealthError(name, what)

    with tapped(model, f"health {id(fail)}", _calls_with(fail)):
        yield

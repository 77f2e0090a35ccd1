"""The proof of a fold: compares the model and the folded network on the same input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.deploy.network import FoldedNetwork, spikes_of_layers
from steadyspike.deploy.proof_of_steps import StepsProof
from steadyspike.nn.decision import decided
from steadyspike.nn.input_convention import in_evaluation
from steadyspike.nn.neuron import Neuron, Tap, neurons


@dataclass(frozen=True)
class Proof:
    """How well a folded network agrees with its model.

    spikes: for every neuron layer, the share of spikes that differ
    rates: how often it fired
    output: the largest absolute difference of the outputs; ``largest`` is the largest absolute output
    decisions: the share of samples with another best class
    steps: the comparison one step at a time and at T = 1; None if it was not made
    """

    dtype: torch.dtype
    spikes: dict[str, float]
    rates: dict[str, float]
    output: float
    largest: float
    decisions: float
    steps: StepsProof | None = None

    @property
    def silent(self) -> list[str]:
        """Returns layers that never fired on this input; the proof does not cover them."""
        return [name for name, rate in self.rates.items() if rate == 0]

    @property
    def worst(self) -> float:
        return max(self.spikes.values(), default=0.0)

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        count = len(self.silent)
        silent = f"; {count} {'layer' if count == 1 else 'layers'} never fired" if count else ""
        steps = f"; {self.steps}" if self.steps is not None else ""
        return (
            f"{name}: {self.worst:.2e} of the spikes differ in the worst of {len(self.spikes)} layers, outputs by at "
            f"most {self.output:.2e} (largest output {self.largest:.3g}), {self.decisions:.2%} of the decisions"
            f"{silent}{steps}"
        )


@contextmanager
def watched_spikes(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collects, inside the block, the spikes (bool, [T, B, ...]) of every neuron layer by name.

    The second call of a layer has the name ``name:2``.
    """
    seen: dict[str, Tensor] = {}
    layers = {layer: name for name, layer in neurons(model).items() if layer.spiking}
    key = object()

    def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
        name, i = layers[layer], 1
        while name in seen:
            i += 1
            name = f"{layers[layer]}:{i}"
        seen[name] = result.out > 0

    for layer in layers:
        layer.taps[key] = Tap(see)
    try:
        yield seen
    finally:
        for layer in layers:
            del layer.taps[key]


@torch.no_grad()
def prove(model: nn.Module, network: FoldedNetwork, x: Tensor) -> Proof:
    """Runs ``x`` through both, with the model in evaluation mode."""
    with in_evaluation(model), watched_spikes(model) as expected:
        model_output = model(x)
    seen, got = spikes_of_layers(network, x)
    expected = {name: s for name, s in expected.items() if name in seen}  # the output does not need the others
    differ = {name: float((seen[name] != s).double().mean()) for name, s in expected.items()}
    chosen = [_decision(y) for y in (model_output, got)]
    return Proof(
        dtype=x.dtype,
        spikes=differ,
        rates={name: float(s.double().mean()) for name, s in expected.items()},
        output=float((model_output - got).abs().max()),
        largest=float(model_output.abs().max()),
        decisions=float((chosen[0] != chosen[1]).double().mean()),
    )


def _decision(y: Tensor) -> Tensor:
    """Returns the best class of [T, B, classes] (mean over time) or [B, classes]."""
    return decided(y.mean(0) if y.ndim > 2 else y)

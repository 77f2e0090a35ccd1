"""Predicts the time and memory of a training step on a card: counted bytes and operations at fitted efficiencies.

A scan, a norm or a sum moves memory and computes little. Its time is its bytes divided by the bandwidth that such
kernels reach. A convolution's time is its operations divided by the rate that it reaches. The two efficiencies are the
only fitted constants. They are fitted on half of the published times of one card, and checked on the other half within
20 % (tests/analysis/test_gpu_plan.py has both halves).

Not included: how well a certain layer's shape suits a card's convolutions, how fast images are read and augmented, what
several cards lose to communication, and how a card slows down when it is hot. `SPREAD` is the range of a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyspike.analysis.gpu.cards import Card
from steadyspike.analysis.gpu.step_costs import StepCosts

# The share of the stated bandwidth that elementwise kernels reach, and of the stated teraflop/s that convolutions
# reach.
BANDWIDTH_SHARE = 0.90
FLOP_SHARE = 0.52
LAUNCH = 6e-6  # seconds between two kernels, if they are not hidden by other work
SPREAD = (0.8, 1.4)  # a step takes from 0.8 to 1.4 times the prediction

# Bytes per element and step that a neuron layer moves at T = 4 to 8: (forward in evaluation, forward and backward), for
# elements of 4 and of 2 bytes. Ours: docs/kernels-gpu.md. SpikingJelly's Triton LIF: from its source.
NEURON_BYTES = {
    "steadyspike": {4: (8.0, 21.0), 2: (4.0, 11.0)},
    "spikingjelly": {4: (8.0, 28.0), 2: (4.0, 20.0)},
}
_NORM_ACCESSES = (2, 8)  # evaluation: read, write; training: 3 forward (statistics, read, write) and 5 backward
_FUSED_ACCESSES = (0, 4)  # additional accesses of a norm that is fused with its neuron


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of one step by part, and its peak memory in bytes."""

    synapses: float
    neurons: float
    norms: float
    other: float
    memory: float

    @property
    def total(self) -> float:
        return self.synapses + self.neurons + self.norms + self.other


def step_time(
    costs: StepCosts, card: Card, precision: str = "bf16", *, training: bool = True, neuron: str = "steadyspike"
) -> StepTime:
    """Predicts a training step, or a forward in evaluation, from counted ``costs`` on ``card``.

    neuron: whose kernel computes the neuron layers, a key of `NEURON_BYTES`
    """
    size = 4 if precision == "fp32" else 2
    bandwidth, rate = BANDWIDTH_SHARE * card.bandwidth * 1e9, FLOP_SHARE * card.teraflops(precision) * 1e12
    passes = 3 if training else 1  # the backward of a synapse computes two products of the forward's size
    optimizer = 5 * 4 * costs.parameters if training else 0  # momentum: read p, g, m; write p, m; in float32
    other = costs.other * size * (2 if training else 1) + optimizer
    fused = costs.fused_norms if neuron == "steadyspike" else 0
    norms = (costs.norms - fused) * _NORM_ACCESSES[training] + fused * _FUSED_ACCESSES[training]
    # If norm and neuron are fused, the norm's input is kept, and not the current.
    currents = costs.neurons - (costs.fused_neurons if neuron == "steadyspike" else 0)
    return StepTime(
        synapses=passes * costs.flops / rate,
        neurons=costs.neurons * NEURON_BYTES[neuron][size][training] / bandwidth,
        norms=norms * size / bandwidth,
        other=other / bandwidth + passes * costs.operations * LAUNCH,
        memory=_memory(costs, currents, size, training),
    )


def _memory(costs: StepCosts, currents: int, size: int, training: bool) -> float:
    """The peak memory in bytes: weights, gradients and momentum in float32, what the backward needs, work space.

    The backward keeps the inputs of all synapses and norms, and those of neurons whose current is in memory.
    """
    if not training:
        return 4 * costs.parameters + 3 * size * costs.largest
    kept = size * (costs.synapse_in + costs.norms + currents)
    return 3 * 4 * costs.parameters + kept + 2 * size * costs.largest

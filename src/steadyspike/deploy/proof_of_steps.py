"""The second half of a fold's proof: the network one step at a time, and with other numbers of time steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.stream import Stream
from steadyspike.deploy.streamable import why_no_stream
from steadyspike.nn.input_convention import in_evaluation

SAMPLES = 2
DIFFERS = 1e-3  # a relative difference that rounding cannot explain in float64


@dataclass(frozen=True)
class StepsProof:
    """How well a folded network agrees with itself and its model if it does not run on all T steps at once.

    streamed: the largest difference between streaming and the call with all steps, relative to the largest output; None
    if the network cannot be streamed (``why_not``)
    other: the same between network and model at T = 1; None if the model repeats its input itself or takes no other T
    """

    streamed: float | None
    why_not: str | None
    other: float | None

    def __str__(self) -> str:
        if self.streamed is None:
            text = f"cannot be streamed: {self.why_not}"
        else:
            text = f"one step at a time the outputs differ by {self.streamed:.0e} of the largest"
        if self.other is not None and not self.other <= DIFFERS:
            text += f"; at T = 1 the model gives another result ({self.other:.0e}): it depends on its number of steps"
        return text


@torch.no_grad()
def prove_steps(model: nn.Module, network: FoldedNetwork, x: Tensor) -> StepsProof:
    """Runs two samples of ``x`` step by step, and with fewer and more steps than the network was folded with."""
    timed = network.graph.input.timed
    few = x[:, :SAMPLES] if timed else x[:SAMPLES]
    why_not = why_no_stream(network.graph)
    streamed = None if why_not is not None else _streamed(network, few, timed)
    return StepsProof(streamed, why_not, _at_one_step(model, network, few) if timed else None)


def _streamed(network: FoldedNetwork, x: Tensor, timed: bool) -> float:
    """Returns the largest relative difference between a stream's outputs and calls with 1, T and T + 1 steps."""
    steps = network.graph.timesteps
    longest = steps + 1 if network.steps_limit is None else min(steps + 1, network.steps_limit)
    frames = torch.cat([x, x[:1]])[:longest] if timed else x.expand(longest, *x.shape)
    one = Stream(network.eval())
    outs = torch.stack([one(frame) for frame in frames])
    output = network.graph[network.graph.output]
    worst = 0.0
    for length in sorted({1, min(steps, longest), longest}):
        batch = network(frames[:length]) if timed else network(x, length)
        if output.timed:
            stepwise = outs[:length]
        else:
            total = any(node.op == "time_sum" for node in network.graph)
            stepwise = outs[:length].sum(0) if total else outs[:length].mean(0)
        worst = max(worst, relative(batch, stepwise))
    return worst


def _at_one_step(model: nn.Module, network: FoldedNetwork, x: Tensor) -> float | None:
    """Returns the relative difference between model and network on the first frame alone."""
    if len(x) == 1:
        return None
    with in_evaluation(model):
        try:
            expected = model(x[:1])
        except Exception:  # a model may be made for one number of steps, and raise any error for others
            return None
    got = network(x[:1])
    return relative(expected, got) if isinstance(expected, Tensor) and expected.shape == got.shape else None


def relative(a: Tensor, b: Tensor) -> float:
    """Returns the largest absolute difference, relative to the largest value; NaN and infinities give infinity."""
    difference = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
    return difference if difference < float("inf") else float("inf")

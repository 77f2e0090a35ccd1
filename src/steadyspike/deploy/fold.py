"""`fold`: from a trained model to the network of binary spikes that it is equal to, with the proof."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.float64 import StaysDouble
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.proof import Proof, prove
from steadyspike.deploy.rewrite import Mode, fold_graph
from steadyspike.deploy.trace import trace
from steadyspike.models.net import SpikingNet
from steadyspike.nn.neuron import Neuron, Tap, neurons

WRONG = 1e-3  # a share of differing spikes that rounding cannot explain in float64


def fold(
    model: nn.Module, example: Tensor, *, mode: Mode = "exact", batch_dim: int | None = None, check: bool = True
) -> FoldedNetwork:
    """An inference network in which every neuron emits S in {0, 1}; V and batch norms are in the weights.

    example: a batch as the model takes it, [B, ...] (static images) or [T, B, ...]; the network is tied to its shape
        (not to B), and the proof runs on it, so take real data.
    mode: for streams that add spikes of neurons with different thresholds: ``"exact"`` refuses them and lists them,
        ``"split"`` reads every writer with its own copy of the weights, ``"graded"`` keeps the stream real-valued.
    batch_dim: where the batch is in ``example``: 0 or 1; None: as the registered networks take it, 1 for other models.
    check: run the proof, in float64 and in the model's dtype; the results are ``network.proofs``.
    """
    timed = _is_timed(model, example, batch_dim)
    steps = example.shape[0] if timed else _steps(model, example)
    network = FoldedNetwork(fold_graph(trace(model, example, timed=timed, timesteps=steps), mode))
    if check:
        network.proofs = [
            _exact_proof(model, network.graph.timesteps, example, mode, timed),
            prove(model, network, example),
        ]
    return network.train(False)


def _is_timed(model: nn.Module, example: Tensor, batch_dim: int | None) -> bool:
    if batch_dim not in (None, 0, 1):
        raise ValueError(f"batch_dim is 0 ([B, ...]) or 1 ([T, B, ...]), got {batch_dim!r}")
    if batch_dim is None and isinstance(model, SpikingNet):
        return example.ndim == 5
    return batch_dim != 0


def _exact_proof(model: nn.Module, steps: int, example: Tensor, mode: Mode, timed: bool) -> Proof:
    """The fold of the model in float64, where rounding hides nothing."""
    exact = copy.deepcopy(model).double()
    x = example.double()
    with StaysDouble():
        proof = prove(exact, FoldedNetwork(fold_graph(trace(exact, x, timed=timed, timesteps=steps), mode)), x)
    if not proof.worst <= WRONG or not proof.output <= WRONG * proof.largest:
        raise CannotFold(
            f"the folded network does not do what the model does ({proof}): the model does something that a trace "
            "of one example cannot see, such as deciding by the values of its input"
        )
    return proof


@torch.no_grad()
def _steps(model: nn.Module, example: Tensor) -> int:
    """T of a model that makes its own time steps, as its first neuron layer sees it."""
    found: list[int] = []
    key = object()

    def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
        found.append(x.shape[0])

    layers = list(neurons(model).values())
    if not layers:
        raise CannotFold("the model has no neuron layer of this library")
    training = [module for module in model.modules() if module.training]
    model.eval()
    for layer in layers:
        layer.taps[key] = Tap(see)
    try:
        model(example[:1])
    finally:
        for layer in layers:
            del layer.taps[key]
        for module in training:
            module.training = True
    if not found:
        raise CannotFold("no neuron layer ran on the example")
    return found[0]

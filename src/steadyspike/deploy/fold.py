"""`fold`: turns a trained model into an equivalent network of binary spikes, with a proof."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.proof import Proof, prove
from steadyspike.deploy.proof_of_steps import prove_steps
from steadyspike.deploy.rewrite import Mode, fold_graph
from steadyspike.deploy.trace import trace
from steadyspike.nn.input_convention import find_batch_dim, in_evaluation, inner_sizes
from steadyspike.nn.native import NotNative, native
from steadyspike.nn.neuron import neurons

NO_NEURONS = "the model has no neuron layer of this library; convert one of another library: ss.convert(model)"
WRONG = 1e-3  # a share of differing spikes that rounding cannot explain in float64


def fold(
    model: nn.Module, example: Tensor, *, mode: Mode = "exact", batch_dim: int | None = None, check: bool = True
) -> FoldedNetwork:
    """Returns an inference network in which every neuron emits S in {0, 1}; V and batch norms are in the weights.

    model: made of this library's neurons, or a converted one of another library (`ss.convert`, `ss.stabilize`)
    example: a batch as the model takes it, [B, ...] (static images) or [T, B, ...]. The network is tied to its shape
        (not to B), and the proof runs on it, so use real data.
    mode: for streams that add spikes of neurons with different thresholds. ``"exact"`` raises an error that lists them,
        ``"split"`` reads every writer with its own copy of the weights, ``"graded"`` keeps the stream real-valued.
    batch_dim: the axis of the batch in ``example``, 0 or 1; None: found by trying (`nn.input_convention`)
    check: run the proof, in float64 and in the model's dtype, also one step at a time and at T = 1; the results are
        ``network.proofs``.
    """
    if isinstance(model, FoldedNetwork):
        raise CannotFold("the network is folded already")
    try:
        model = native(model)
    except NotNative as error:
        raise CannotFold(str(error)) from None
    timed = find_batch_dim(model, example, batch_dim) == 1
    steps = example.shape[0] if timed else _steps(model, example)
    try:
        graph = trace(model, example, timed=timed, timesteps=steps)
    except CannotFold as error:
        if neurons(model):
            raise
        raise CannotFold(f"{error}; {NO_NEURONS}") from None
    network = FoldedNetwork(fold_graph(graph, mode))
    if check:
        network.proofs = [
            _exact_proof(model, network.graph.timesteps, example, mode, timed),
            prove(model, network, example),
        ]
    return network.train(False)


def _exact_proof(model: nn.Module, steps: int, example: Tensor, mode: Mode, timed: bool) -> Proof:
    """Folds the model in float64, in which rounding hides no error."""
    exact = copy.deepcopy(model).double()
    x = example.double()
    with StaysDouble():
        network = FoldedNetwork(fold_graph(trace(exact, x, timed=timed, timesteps=steps), mode))
        proof = replace(prove(exact, network, x), steps=prove_steps(exact, network, x))
    if not proof.worst <= WRONG or not proof.output <= WRONG * proof.largest:
        raise CannotFold(
            f"the folded network differs from the model ({proof}): the model does something that a trace of one "
            "example cannot record, such as a decision based on the values of its input"
        )
    stepwise = None if proof.steps is None else proof.steps.streamed
    if stepwise is not None and not stepwise <= WRONG:
        raise CannotFold(
            f"the folded network differs if it runs one step at a time (relative difference {stepwise:.1e}): this is "
            "a bug of fold, please report the model"
        )
    return proof


def _steps(model: nn.Module, example: Tensor) -> int:
    """Returns T of a model that makes its own time steps, as its first neuron layer gets them."""
    if not neurons(model):
        raise CannotFold(NO_NEURONS)
    with in_evaluation(model):
        sizes = inner_sizes(model, example[:1])
    if isinstance(sizes, str):
        raise CannotFold(f"the model does not run on a batch of one: {sizes}")
    return sizes.steps


LOWER = (torch.float32, torch.float16, torch.bfloat16)


class StaysDouble(TorchFunctionMode):
    """Inside the block, ``x.float()`` and ``x.to(torch.float32)`` of a float64 tensor leave it in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        x = args[0] if args else None
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            if name in ("float", "half", "bfloat16"):
                return x.double()
            if name == "to":
                args = (x, *(_double(a) for a in args[1:]))
                kwargs = {key: _double(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _double(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOWER else value

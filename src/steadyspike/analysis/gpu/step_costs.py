"""What a forward of a network computes and moves, counted without running it.

The network runs once on tensors that have sizes but no memory (the meta device). A dispatch mode sees every operation
of torch. Operations inside a neuron are left out, because a GPU runs one kernel for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steadyspike.core.torch_private import storage_key
from steadyspike.nn.neuron import Neuron

# Operations that only return a view, or that allocate nothing.
_FREE = ("view", "expand", "detach", "unsqueeze", "squeeze", "select", "t", "transpose", "permute", "slice",
         "alias", "unbind", "as_strided", "empty", "zeros", "promote_types", "snapshot",
         "_reshape_alias", "unflatten")  # fmt: skip
_SMALL = 4096  # number of elements of a layer's constants, which are not activations


@dataclass
class StepCosts:
    """The costs of a forward of one batch, in numbers that do not depend on precision.

    flops: of convolutions and matrix products (2 per multiply-accumulate)
    synapse_in, synapse_out: elements that they read and write
    neurons: elements that neuron layers read, over all steps
    norms: elements that norms read
    fused_norms, fused_neurons: those of them that are fused on a GPU (`nn/operator_norm.py`)
    other: elements that all other operations read or write
    operations: how many kernels are launched, one per neuron layer
    largest: elements of the largest activation
    parameters: trained numbers
    """

    flops: float = 0.0
    synapse_in: int = 0
    synapse_out: int = 0
    neurons: int = 0
    norms: int = 0
    fused_norms: int = 0
    fused_neurons: int = 0
    other: int = 0
    operations: int = 0
    largest: int = 0
    parameters: int = 0


class _Counter(TorchDispatchMode):
    def __init__(self, costs: StepCosts) -> None:
        super().__init__()
        self.costs, self.inside = costs, 0
        # For a tensor that is a norm's output, or a sum of such outputs: how many elements these norms have. Its
        # storage is stored too, so that no other tensor can get the same key.
        self.normed: dict[int, tuple[int, object]] = {}
        # for the storage of a current: the elements of its norms, and its own
        self.fused: dict[int, tuple[int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.inside:
            self._count(func.overloadpacket.__name__, args, out)
        return out

    def _count(self, name: str, args: Any, out: Any) -> None:
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if name in _FREE or not outputs:
            return
        inputs = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
        written, c = outputs[0].numel(), self.costs
        sources = [self.normed.get(storage_key(t), (0, None))[0] for t in inputs]
        for t in inputs:  # values that another operation reads too must be in memory
            self.fused.pop(storage_key(t), None)
            self.normed.pop(storage_key(t), None)
        c.operations += 1
        if name in ("convolution", "addmm", "mm", "bmm"):
            x, weight = (args[0], args[1]) if name != "addmm" else (args[1], args[2])
            per_output = math.prod(weight.shape[1:]) if name == "convolution" else x.shape[-1]
            c.flops += 2.0 * written * per_output
            c.synapse_in, c.synapse_out = c.synapse_in + x.numel(), c.synapse_out + written
        elif name in ("native_batch_norm", "cudnn_batch_norm", "var_mean"):
            c.norms += inputs[0].numel()
            self._note(outputs[0], inputs[0].numel() if name != "var_mean" else 0)
        elif max(written, *(t.numel() for t in inputs), 0) > _SMALL:
            c.other += sum(_held(t) for t in inputs) + sum(_held(t) for t in outputs)
            if name == "add":
                self._note(outputs[0], sum(sources))
        c.largest = max(c.largest, written)

    def _note(self, out: Tensor, elements: int) -> None:
        if elements:
            self.normed[storage_key(out)] = elements, out.untyped_storage()

    def neuron(self, x: Tensor) -> None:
        """Counts a neuron layer that reads ``x``.

        Its norm counts as fused, unless the same image is repeated at every step.
        """
        self.inside += 1
        self.costs.neurons += x.numel()
        self.costs.operations += 1
        elements = self.normed.get(storage_key(x), (0, None))[0]
        if elements and _held(x) == x.numel():
            self.fused[storage_key(x)] = elements, x.numel()


def _held(tensor: Tensor) -> int:
    """Returns the elements in memory; an image that is repeated over time is stored once."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride or size <= 1)


@contextmanager
def _neurons_apart(model: nn.Module, counter: _Counter) -> Iterator[None]:
    """Counts each call of a neuron layer as one operation; torch's operations inside are not counted."""

    def enter(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counter.neuron(args[0])

    def leave(module: nn.Module, args: tuple[Tensor, ...], out: Any) -> None:
        counter.inside -= 1

    layers = [m for m in model.modules() if isinstance(m, Neuron)]
    hooks = [m.register_forward_pre_hook(enter) for m in layers] + [m.register_forward_hook(leave) for m in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def step_costs(model: nn.Module, example: Tensor, *, training: bool = True) -> StepCosts:
    """Counts a forward of ``model`` on a batch of the shape of ``example``; both are moved to the meta device."""
    model = model.to("meta").train(training)
    costs = StepCosts(parameters=sum(p.numel() for p in model.parameters()))
    counter, x = _Counter(costs), example.to("meta")
    with torch.no_grad(), _neurons_apart(model, counter), counter:
        model(x)
    costs.fused_norms, costs.fused_neurons = (sum(sizes) for sizes in zip((0, 0), *counter.fused.values()))
    return costs

"""`save_memory`: autograd keeps spikes as bits, 1/32 of float32, while a model trains.

Hooks on the model check every tensor that an operator saves for its backward. A tensor whose elements are all 0 or one
other value (or one other value per channel) is kept as `PackedSpikes`. Examples are a neuron's output and the pooling
of it. All other tensors are kept unchanged.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from steadyspike.core.torch_private import may_hook_saved_tensors, remove_forward_hooks, saved_tensor_hooks, version
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.spikes.note import find_spikes, known_spikes, note_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes

SMALLEST = 4096  # elements; packing smaller tensors is not worth the time
Model = TypeVar("Model", bound=nn.Module)


class _Kept(NamedTuple):
    """A saved tensor, unchanged, with its version: autograd does not check versions of tensors saved with hooks."""

    saved: Tensor
    version: int | None

    def tensor(self) -> Tensor:
        if self.version is not None and version(self.saved) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.saved.dtype} {list(self.saved.shape)}] is at version {version(self.saved)}; expected version "
                f"{self.version} instead"
            )
        return self.saved


class _Bits(NamedTuple):
    """A saved tensor as bits.
    ``steps``: whether it has a time axis; otherwise one of length 1 was added
    """

    spikes: PackedSpikes
    steps: bool

    def tensor(self) -> Tensor:
        values = self.spikes.unpack()
        note_spikes(values, self.spikes)  # for a checkpoint that recomputes from this tensor
        return values if self.steps else values[0]


class _Pack:
    """The pack hook: autograd calls it with every tensor that it saves."""

    @torch.no_grad()
    def __call__(self, tensor: Tensor) -> _Kept | _Bits:
        if tensor.numel() >= SMALLEST and tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
            spikes = known_spikes(tensor) if tensor.ndim > 2 else None
            if spikes is not None:
                return _Bits(spikes, steps=True)
            spikes = find_spikes(tensor.unsqueeze(0))  # the channels of an image or a row are the second axis
            if spikes is not None:
                return _Bits(spikes, steps=False)
        # Detached, because an operator's output refers to the operator, which keeps this tensor; that would be a
        # reference cycle.
        kept = tensor if tensor.grad_fn is None else tensor.detach()
        return _Kept(kept, None if tensor.is_inference() else version(tensor))


def _unpack(saved: _Kept | _Bits) -> Tensor:
    return saved.tensor()


class _Saver:
    """The hooks on the model. It holds no tensors; copies and pickles start without a running forward."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._local = threading.local()

    @property
    def _running(self) -> list[ExitStack]:
        """Returns the hooks of each running forward of this thread."""
        if not hasattr(self._local, "running"):
            self._local.running = []
        return self._local.running

    def enter(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = ExitStack()
        plain = torch.is_grad_enabled() and not (torch.jit.is_tracing() or is_transformed())
        # Not inside of other hooks: a checkpoint around the model keeps nothing of this forward. torch allows one pair
        # of hooks at a time, and torch.func allows none.
        if plain and may_hook_saved_tensors() and saved_tensor_hooks() is None:
            stack.enter_context(saved_tensors_hooks(_Pack(), _unpack))
        self._running.append(stack)

    def leave(self, model: nn.Module, args: Any, out: Any) -> None:
        # Also called if a hook before `enter` raised an error, so that `enter` was never called.
        if not torch.compiler.is_compiling() and self._running:
            self._running.pop().close()


def save_memory(model: Model) -> Model:
    """Changes ``model`` in place so that training keeps spikes as bits for the backward, and returns it.

    Outputs, gradients and checkpoints stay the same. `restore_memory` undoes the change.
    """
    restore_memory(model)
    saver = _Saver()
    model.register_forward_pre_hook(saver.enter, prepend=True)
    model.register_forward_hook(saver.leave, always_call=True)
    return model


def restore_memory(model: Model) -> Model:
    """Undoes `save_memory` on ``model``, in place, and returns it."""
    remove_forward_hooks(model, lambda hook: isinstance(getattr(hook, "__self__", None), _Saver))
    return model

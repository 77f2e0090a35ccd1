"""Activation checkpointing: a forward that runs again in the backward pass starts from the values of its first run.

The second run must not update running statistics again (`recomputing`), and it needs the values from which the first
run started, because MP-Init's mean has changed since. `store` adds such a value to the records of all checkpoints
around the call; `recall` reads the values in the order of the calls. A record lives as long as its checkpoint. Forwards
outside of checkpoints store nothing.

It works for torch.utils.checkpoint, and for every torch.autograd.Function that runs the layers in its ``forward`` and
again in its ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint

from steadyspike.core.torch_private import backward_task, checkpoint_frames, running_functions, saved_tensor_hooks


class _Record:
    """The values of one checkpoint by owner, and how many of them its newest recomputation has read."""

    def __init__(self) -> None:
        self.values: dict[object, list[Tensor]] = {}
        self.read: dict[object, int] = {}
        self.task = -1

    def take(self, owner: object) -> Tensor | None:
        """Returns the value of the next call of ``owner``; None if the first run did not call it so often."""
        task = backward_task()
        if task != self.task:  # another backward of the same graph (retain_graph) reads from the start
            self.task, self.read = task, {}
        number = self.read[owner] = self.read.get(owner, -1) + 1
        values = self.values.get(owner, [])
        return values[number] if number < len(values) else None


_records: WeakKeyDictionary[Any, _Record] = WeakKeyDictionary()


def recomputing() -> bool:
    """Returns True inside the recomputation of a checkpointed forward."""
    if torch.compiler.is_compiling():
        # A compiled graph cannot detect this; the operator that reads the mean checks it when the graph runs
        # (nn/snapshot.py).
        return False
    return backward_task() != -1


def first_runs() -> list[Any]:
    """Returns the checkpoints that run for the first time around this call."""
    # A checkpoint runs its forward with hooks or without gradients.
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and saved_tensor_hooks() is None):
        return []
    return [checkpoint for checkpoint, again in (*checkpoint_frames(), *running_functions()) if not again]


def store(owner: object, value: Tensor) -> None:
    """Keeps a copy of ``value``, from which a forward of ``owner`` starts, in the checkpoints of which it is a part."""
    for checkpoint in first_runs():
        _records.setdefault(checkpoint, _Record()).values.setdefault(owner, []).append(value.detach().clone())


def recall(owner: object) -> Tensor:
    """Returns the value from which the forward of ``owner`` started that is now recomputed."""
    around = (*checkpoint_frames(), *running_functions())  # the innermost first
    recomputed = next((checkpoint for checkpoint, again in around if again), None)
    value = _records[recomputed].take(owner) if recomputed in _records else None
    if value is None:
        raise RuntimeError(
            "this layer ran inside the backward pass, but not as often in a checkpointed training forward. Either the "
            "layers that a checkpointed function calls depend on something that changes; or this call does not belong "
            "to activation checkpointing: then make it outside the backward pass"
        )
    store(owner, value)  # for a checkpoint inside of the function that is recomputed
    return value


def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Runs ``function(*args)``, keeps only its inputs, and runs it again in the backward pass.

    Does the same as ``torch.utils.checkpoint.checkpoint(..., use_reentrant=False)``, whose ``options`` it takes.
    """
    return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, **options)

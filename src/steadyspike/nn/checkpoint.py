"""`checkpoint`: activation checkpointing in which a recomputed forward starts from the same values as its first run.

torch.utils.checkpoint runs a function again in the backward pass, when MP-Init's mean has already changed. `checkpoint`
records the values of every layer in the order of its calls, and the recomputation reads them in this order. Code that
calls torch.utils.checkpoint itself has no such record; for it, `checkpointed_forward.Memory` finds a forward by its
input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint


class _Running(threading.local):
    """The checkpoints around the currently running code, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[_Context] = []


_running = _Running()


class Record:
    """The values of one checkpointed forward, grouped by the object that stored them, in the order of the calls."""

    def __init__(self) -> None:
        self.values: dict[int, list[Tensor]] = {}

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Returns the contexts of the first run and of a recomputation, for torch.utils.checkpoint."""
        return _Context(self, replays=False), _Context(self, replays=True)


class _Context:
    """While it is active, values are added to the record, or read from its beginning on."""

    def __init__(self, record: Record, *, replays: bool) -> None:
        self.record, self.replays = record, replays
        self.read: dict[int, int] = {}

    def __enter__(self) -> None:
        # One record serves several recomputations (retain_graph), each of which reads from the start.
        self.read.clear()
        _running.contexts.append(self)

    def __exit__(self, *error: object) -> None:
        _running.contexts.remove(self)

    def take(self, owner: object) -> Tensor:
        number = self.read.get(id(owner), 0)
        self.read[id(owner)] = number + 1
        values = self.record.values.get(id(owner), [])
        if number >= len(values):
            raise RuntimeError(
                "a checkpointed function called a layer more often when it was recomputed; which layers it calls must "
                "not depend on anything that changes"
            )
        return values[number]


def record_value(owner: object, value: Tensor) -> None:
    """Adds a copy of ``value`` to the records of all running checkpoints."""
    for context in _running.contexts:
        if not context.replays:
            context.record.values.setdefault(id(owner), []).append(value.detach().clone())


def recorded_value(owner: object) -> Tensor | None:
    """Returns the value for the next call of ``owner`` in the innermost recomputation; None if it has no record."""
    # A checkpoint inside a recomputed checkpoint records while the outer one replays.
    replaying = [context for context in _running.contexts if context.replays]
    return replaying[-1].take(owner) if replaying else None


def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Runs ``function(*args)``, keeps only its inputs, and runs it again in the backward pass.

    Does the same as ``torch.utils.checkpoint.checkpoint(..., use_reentrant=False)``, whose ``options`` it takes. A
    layer may run several times inside, also on the same input.
    """
    contexts = Record().contexts
    return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **options)

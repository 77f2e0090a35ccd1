"""Activation checkpointing runs a forward twice; the second run must not move statistics, and must start where the
first one did.

torch.utils.checkpoint recomputes inside the backward pass, which is how `recomputing` knows. MP-Init's mean has moved
on by then, so `Memory` keeps the value that each forward under a checkpoint started from, and finds it by a fingerprint
of the input. Forwards outside a checkpoint are not remembered and cost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from steadyspike.core.torch_private import FakeTensor, in_backward, saved_tensor_hooks

# Not id(): that of a checkpoint which is gone may be given to the next one.
_regions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_numbers = count(1)


def recomputing() -> bool:
    """True inside the recomputation of a checkpointed forward."""
    if torch.compiler.is_compiling():
        # Decided when the graph runs, by the operator that reads the mean (nn/snapshot.py).
        return False
    return in_backward()


def checkpoint_region() -> int | None:
    """A number for the checkpoint this forward may be part of; None if it cannot be recomputed.

    A non-reentrant checkpoint shows as saved-tensor hooks of its own, a reentrant one as a training forward without
    gradients. Hooks that keep everything, in whatever form, say so by ``recomputes = False``.
    """
    if torch.compiler.is_compiling():
        return None
    hooks = saved_tensor_hooks()
    if hooks is not None and getattr(hooks[0], "recomputes", True):
        return _regions.setdefault(hooks[0], next(_numbers))
    return None if torch.is_grad_enabled() else 0


def fingerprint(x: Tensor) -> Tensor:
    """Sum and norm of every time step, [2 T] float64."""
    x = x.detach()
    x = x[:1] if x.stride(0) == 0 else x
    axes = tuple(range(1, x.ndim))
    sums = x.sum(axes, dtype=torch.float64)
    norms = torch.linalg.vector_norm(x, dim=axes, dtype=torch.float64)
    return torch.cat([sums, norms]).nan_to_num(nan=-1.0)


@dataclass
class Entry:
    """One remembered forward: fingerprint of its input, the value it used, its checkpoint, and if it was recalled."""

    seen: Tensor
    value: Tensor
    region: int
    spent: bool = False


class Memory:
    """What recent checkpointed forwards started from; holds no graph and is neither copied nor saved."""

    def __init__(self, size: int = 256) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)

    def __getstate__(self) -> dict[str, int]:
        return {"size": self._entries.maxlen or 0}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._entries = deque(maxlen=state["size"])

    def store(self, x: Tensor, value: Tensor) -> None:
        """Remembers ``value`` for ``x`` if this forward is under a checkpoint."""
        region = checkpoint_region()
        if region is not None:
            self._entries.append(Entry(fingerprint(x), value.detach().clone(), region))

    def recall(self, x: Tensor) -> Tensor:
        """The value that the forward with input ``x`` started from.

        Of several forwards with the same input the newest comes first, the order in which a backward reaches them.
        """
        wanted = fingerprint(x)
        fits = [e for e in self._entries if e.seen.shape == wanted.shape and e.seen.device == wanted.device]
        if isinstance(wanted, FakeTensor) and fits:
            return fits[-1].value  # in a memory estimate: tensors without values, of which any will do
        scale = wanted.abs().max() + 1e-30
        distances = [float((e.seen - wanted).abs().max() / scale) for e in fits]
        best = min(distances, default=float("inf"))
        if not best < 1e-3:
            raise RuntimeError(
                "a forward inside the backward pass met an input that none of the last "
                f"{self._entries.maxlen} checkpointed training forwards of this layer had: either something before the "
                "layer is random or stateful, or this is no recomputation and must run outside the backward"
            )
        ties = [e for e, d in zip(fits, distances) if d == best]
        regions = [e.region for e in ties if e.region != 0]
        if len(set(regions)) < len(regions) and any(not torch.equal(e.value, ties[0].value) for e in ties):
            raise RuntimeError(
                "this layer ran twice on the same input inside one checkpoint, starting from different running means; "
                "checkpoint the two calls separately"
            )
        fresh = [e for e in ties if not e.spent]
        if not fresh:
            fresh = ties
            for entry in ties:
                entry.spent = False
        chosen = fresh[-1]
        chosen.spent = True
        return chosen.value

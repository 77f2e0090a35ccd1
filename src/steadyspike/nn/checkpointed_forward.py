"""Support for activation checkpointing, which runs a forward twice.

The second run must not update running statistics again, and must start from the same values as the first run.
torch.utils.checkpoint recomputes inside the backward pass; `recomputing` detects this. At that time MP-Init's mean has
already changed. A checkpoint of `nn/checkpoint.py` stores the values from which its forward started. For code
that calls torch.utils.checkpoint itself, `Memory` stores the value of each checkpointed forward and finds it again by a
fingerprint of the input. Forwards outside a checkpoint are not stored and cost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from steadyspike.core.torch_private import FakeTensor, in_backward, saved_tensor_hooks
from steadyspike.nn.checkpoint import record_value, recorded_value

SAMPLES = 512  # number of elements by which an input is recognised

# Not id(): Python may reuse the id of a deleted checkpoint for the next one.
_regions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_numbers = count(1)


def recomputing() -> bool:
    """Returns True inside the recomputation of a checkpointed forward."""
    if torch.compiler.is_compiling():
        # A compiled graph cannot detect this; the operator that reads the mean checks it when the graph runs
        # (nn/snapshot.py).
        return False
    return in_backward()


def checkpoint_region() -> int | None:
    """Returns a number for the checkpoint that this forward may be part of; None if the forward cannot be recomputed.

    A non-reentrant checkpoint is recognised by its saved-tensor hooks, a reentrant one by a training forward without
    gradients. Hooks that only keep tensors and never recompute have the attribute ``recomputes = False``.
    """
    if torch.compiler.is_compiling():
        return None
    hooks = saved_tensor_hooks()
    if hooks is not None and getattr(hooks[0], "recomputes", True):
        return _regions.setdefault(hooks[0], next(_numbers))
    return None if torch.is_grad_enabled() else 0


@lru_cache(maxsize=256)
def _places(shape: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """Returns the coordinates of SAMPLES elements of a tensor of this shape; they are always the same."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(size, (SAMPLES,), generator=generator, device="cpu").to(device=device) for size in shape)


def fingerprint(x: Tensor) -> Tensor:
    """Returns some elements of ``x``, by which it is found again.

    Reading all of them would take longer than the scan.
    """
    x = x.detach()
    # A static image is repeated without a copy, so one step has all of its values.
    x = x[:1] if x.stride(0) == 0 else x
    if isinstance(x, FakeTensor):
        return x.new_empty(SAMPLES)
    sample = x[_places(x.shape, x.device)] if x.numel() > SAMPLES else x.reshape(-1)
    # NaN is never equal to itself, so it is replaced before fingerprints are compared.
    return sample.float().nan_to_num(nan=-1.0, posinf=1e30, neginf=-1e30)


@dataclass
class Entry:
    """One stored forward.

    It has shape and fingerprint of its input, the value it started from, its checkpoint, and whether it was recalled.
    """

    shape: torch.Size
    seen: Tensor
    value: Tensor
    region: int
    spent: bool = False


class Memory:
    """The values from which recent checkpointed forwards started. It holds no graph; copies and pickles start empty."""

    def __init__(self, size: int = 256) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)

    def __getstate__(self) -> dict[str, int]:
        return {"size": self._entries.maxlen or 0}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._entries = deque(maxlen=state["size"])

    def store(self, x: Tensor, value: Tensor) -> None:
        """Stores ``value`` for the input ``x`` if this forward is inside a checkpoint."""
        region = checkpoint_region()
        if region is not None:
            record_value(self, value)
            self._entries.append(Entry(x.shape, fingerprint(x), value.detach().clone(), region))

    def recall(self, x: Tensor) -> Tensor:
        """Returns the value from which the forward with input ``x`` started.

        If `nn.checkpoint` has recorded it, this record is used. Otherwise, if several forwards had the same input, the
        newest comes first, because the backward reaches them in this order.
        """
        value = recorded_value(self)
        value = self._find(x) if value is None else value
        record_value(self, value)  # for a checkpoint inside of the function that is recomputed
        return value

    def _find(self, x: Tensor) -> Tensor:
        print_of_x = fingerprint(x)
        fits = [e for e in self._entries if e.shape == x.shape and e.seen.device == print_of_x.device]
        if isinstance(print_of_x, FakeTensor) and fits:
            return fits[-1].value  # a memory estimate: tensors have no values, so any entry will do
        # The mean difference, not the largest one: a rounding difference may move a spike, and with it a few currents.
        scale = print_of_x.abs().mean() + 1e-30
        distances = [float((e.seen - print_of_x).abs().mean() / scale) for e in fits]
        best = min(distances, default=float("inf"))
        # Written with "not", so that a NaN distance raises the error too.
        if not best < 1e-3:
            raise RuntimeError(
                "this layer ran inside the backward pass with an input that none of the last "
                f"{self._entries.maxlen} checkpointed training forwards had. Either something before the layer is "
                "random or stateful, so that the recomputed input differs; or this call does not belong to "
                "activation checkpointing: then make it outside the backward pass"
            )
        # Several forwards may have had exactly this input, for example in T calls on one image, or in gradient
        # accumulation.
        ties = [e for e, d in zip(fits, distances) if d == best]
        regions = [e.region for e in ties if e.region != 0]
        if len(set(regions)) < len(regions) and any(not torch.equal(e.value, ties[0].value) for e in ties):
            raise RuntimeError(
                "this layer ran twice on the same input inside one checkpoint, starting from different running means; "
                "checkpoint the two calls separately, or use steadyspike.nn.checkpoint.checkpoint"
            )
        # Every forward is recomputed once per backward. If all are recalled, this is a second backward (retain_graph),
        # and the order begins again.
        fresh = [e for e in ties if not e.spent]
        if not fresh:
            fresh = ties
            for entry in ties:
                entry.spent = False
        chosen = fresh[-1]
        chosen.spent = True
        return chosen.value

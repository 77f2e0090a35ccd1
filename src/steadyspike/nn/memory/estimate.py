"""`memory_estimate`: what a training step will take, before it runs.

The step runs on a copy of the model whose tensors have sizes but no values, so nothing of the estimated size is ever
allocated and the model stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.nn.memory.track import MemoryTracker

# Tensors of a parameter's size that an optimizer keeps.
OPTIMIZERS = {"none": 0, "sgd": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one training step.

    parameters: parameters and buffers. gradients: those of the parameters. optimizer: its state.
    saved: what the forward keeps for the backward, the part that grows with batch and time. peak: the most that is in
    memory at once, the input included.
    """

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    peak: int

    def __str__(self) -> str:
        rows = [(name, getattr(self, name)) for name in self.__dataclass_fields__]
        return "\n".join(f"{name:<11}{size / 2**20:10.1f} MiB" for name, size in rows)


def memory_estimate(
    model: nn.Module,
    example: Tensor,
    *,
    optimizer: str = "sgd",
    loss: Callable[[Tensor], Tensor] = torch.mean,
) -> MemoryEstimate:
    """Memory of a training step of ``model`` on a batch like ``example``, on its device.

    example: a batch of full size; only its shape, dtype and memory format matter, so that a tensor without memory is as
        good (``torch.empty(4, 64, 2, 48, 48, device="meta")``).
    optimizer: ``"sgd"`` (with momentum), ``"adam"``, ``"adamw"`` or ``"none"``.
    loss: from the model's output to a scalar.
    """
    from torch._subclasses import FakeTensorMode

    if optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    trained = _size(p for p in model.parameters() if p.requires_grad)
    constant = _size([*model.parameters(), *model.buffers()])
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake: dict[int, object] = {id(t): mode.from_tensor(t) for t in (*model.parameters(), *model.buffers())}
    work = copy.deepcopy(model, fake).train()
    x = _like(example, next(model.parameters(), example).device, mode)
    with mode, MemoryTracker() as tracker:
        for tensor in (*work.parameters(), *work.buffers(), x):
            tracker.known(tensor)
        work.zero_grad(set_to_none=True)
        value = loss(work(x))
        saved = tracker.live
        value.backward()
    state = OPTIMIZERS[optimizer] * trained
    return MemoryEstimate(constant, trained, state, saved, constant + state + _size([x]) + tracker.peak)


def _like(example: Tensor, device: torch.device, mode: AbstractContextManager[Any]) -> Tensor:
    """A fake of ``example``, on ``device`` if it is on the meta device."""
    device = device if example.is_meta else example.device
    with mode:
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)


def _size(tensors: Iterable[Tensor]) -> int:
    """Bytes of distinct storages."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())

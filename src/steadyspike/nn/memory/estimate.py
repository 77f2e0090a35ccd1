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

from steadyspike.core.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    storage_key,
)
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

    model: a model on the meta device is taken to be on the CPU. If nothing of it is trained, the step is a forward.
    example: a batch of full size; only its shape, dtype and memory format matter, so that a tensor without memory is as
        good (``torch.empty(4, 64, 2, 48, 48, device="meta")``).
    optimizer: ``"sgd"`` (with momentum), ``"adam"``, ``"adamw"`` or ``"none"``.
    loss: from the model's output to a scalar.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    if not isinstance(example, Tensor):
        raise TypeError(f"example is a batch, one tensor as the model takes it; got {type(example).__name__}")
    if any(nn.parameter.is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        raise ValueError("the model has lazy layers whose sizes are not known yet; run it once before the estimate")
    # The estimate is that of training, wherever it is asked for.
    with torch.inference_mode(False), torch.enable_grad():
        return _estimate(model, example, OPTIMIZERS[optimizer], loss)


def _estimate(model: nn.Module, example: Tensor, states: int, loss: Callable[[Tensor], Tensor]) -> MemoryEstimate:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake: dict[int, object] = {id(t): _without_values(t, mode) for t in (*model.parameters(), *model.buffers())}
    work = copy.deepcopy(model, fake).train()
    x = _like(example, next(work.parameters(), example).device, mode)
    trained = _size(p for p in work.parameters() if p.requires_grad)
    constant = _size([*work.parameters(), *work.buffers()])
    with mode, MemoryTracker() as tracker:
        for tensor in (*work.parameters(), *work.buffers(), x):
            tracker.known(tensor)
        work.zero_grad(set_to_none=True)
        try:
            value = loss(work(x))
            saved = tracker.live
            if value.requires_grad:
                value.backward()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RuntimeError(
                f"the model decides by the values of its tensors ({error.func}, as in x.item(), if x > 0: or "
                "x[mask]), and an estimate has none; leave such code out while torch.compiler.is_compiling() or "
                "measure a real step"
            ) from error
    state = states * trained
    return MemoryEstimate(constant, trained, state, saved, constant + state + _size([x]) + tracker.peak)


def _without_values(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """A fake of ``tensor``, a parameter if it is one; on the CPU if it is on the meta device."""
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _like(example: Tensor, device: torch.device, mode: AbstractContextManager[Any]) -> Tensor:
    """A fake of ``example``, on ``device`` if it is on the meta device."""
    device = device if example.is_meta else example.device
    with mode:
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)


def _size(tensors: Iterable[Tensor]) -> int:
    """Bytes of distinct storages."""
    storages = {storage_key(t): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())

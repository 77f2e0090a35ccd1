"""`memory_estimate`: estimates the memory of a training step without running it.

The step runs on a copy of the model whose tensors have sizes but no values. It therefore needs almost no memory and
does not change the model. Layers run the same code as in a real step, so that they allocate and keep the same tensors
(`kernels/sizes_only.py`).
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
from steadyspike.kernels.sizes_only import SizesOnly
from steadyspike.nn.memory.track import MemoryTracker

# The number of tensors that an optimizer keeps for each parameter.
OPTIMIZERS = {"none": 0, "sgd": 1, "adam": 2, "adamw": 2, "lamb": 2, "muon": 1}


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one training step, in bytes.

    parameters: parameters and buffers
    gradients: gradients of the parameters
    optimizer: the optimizer's state
    saved: what the forward keeps for the backward; it grows with batch and time steps
    peak: the largest amount in memory at one time, including the input
    """

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    peak: int

    def __str__(self) -> str:
        rows = [(name, getattr(self, name)) for name in self.__dataclass_fields__]
        return "\n".join(f"{name:<11}{size / 2**20:10.1f} MiB" for name, size in rows)


def _mean(output: Any) -> Tensor:
    """Returns the mean of an output, or the sum of the means of several, such as the maps of a detection network."""
    return torch.mean(output) if isinstance(output, Tensor) else torch.stack([_mean(one) for one in output]).sum()


def memory_estimate(
    model: nn.Module,
    example: Tensor,
    *,
    optimizer: str = "sgd",
    loss: Callable[[Any], Tensor] = _mean,
    firing_rate: float = 0.2,
) -> MemoryEstimate:
    """Estimates the memory of a training step of ``model`` on a batch like ``example``.

    model: a model on the meta device is treated as if it were on the CPU. Without trainable parameters the step is only
    a forward.
    example: a batch of full size. Only its shape, dtype and memory format matter, so it may be a tensor without memory
        (``torch.empty(4, 64, 2, 48, 48, device="meta")``).
    optimizer: ``"sgd"`` (with momentum), ``"adam"``, ``"adamw"``, ``"lamb"``, ``"muon"`` or ``"none"``
    loss: a function from the model's output to a scalar; the default accepts tensors, and lists and tuples of them
    firing_rate: the assumed share of neurons that fire per step. On the CPU it decides which convolutions and linear
        layers compute by events (`use_events`), which keep their input as bits; the others keep it as floating-point
        numbers.
    """
    if not 0 <= firing_rate <= 1:
        raise ValueError(f"firing_rate is a share of neurons and must be from 0 to 1; got {firing_rate}")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    if not isinstance(example, Tensor):
        raise TypeError(f"example must be one batch as a single tensor; got {type(example).__name__}")
    if any(nn.parameter.is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        raise ValueError("the model has lazy layers whose sizes are not known yet; run it once before the estimate")
    # The estimate is for training even if the caller has turned gradients off.
    with torch.inference_mode(False), torch.enable_grad():
        return _estimate(model, example, OPTIMIZERS[optimizer], loss, SizesOnly(firing_rate))


def _estimate(
    model: nn.Module, example: Tensor, states: int, loss: Callable[[Any], Tensor], mode: FakeTensorMode
) -> MemoryEstimate:
    fake: dict[int, object] = {id(t): _without_values(t, mode) for t in (*model.parameters(), *model.buffers())}
    # deepcopy's memo maps each tensor to its fake, so that the copy never allocates the real sizes.
    work = copy.deepcopy(model, fake).train()
    x = _like(example, next(work.parameters(), example).device, mode)
    trained = _size(p for p in work.parameters() if p.requires_grad)
    constant = _size([*work.parameters(), *work.buffers()])
    with mode, MemoryTracker() as tracker:
        for tensor in (*work.parameters(), *work.buffers(), x):
            tracker.ignore(tensor)
        work.zero_grad(set_to_none=True)
        try:
            value = loss(work(x))
            # Everything that is still alive after the forward is kept for the backward.
            saved = tracker.live
            if value.requires_grad:
                value.backward()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RuntimeError(
                f"the model uses the values of its tensors to decide what to do ({error.func}, such as x.item(), if x "
                "> 0: or x[mask]), but tensors have no values in an estimate; skip such code if "
                "torch.compiler.is_compiling(), or measure a real step"
            ) from error
    state = states * trained
    return MemoryEstimate(constant, trained, state, saved, constant + state + _size([x]) + tracker.peak)


def _without_values(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Returns a fake copy of ``tensor``, which stays a parameter if it is one.

    On the CPU if it is on the meta device.
    """
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _like(example: Tensor, device: torch.device, mode: AbstractContextManager[Any]) -> Tensor:
    """Returns a fake copy of ``example``, on ``device`` if it is on the meta device."""
    device = device if example.is_meta else example.device
    with mode:
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)


def _size(tensors: Iterable[Tensor]) -> int:
    """Returns the total size in bytes; a storage that several tensors share is counted once."""
    storages = {storage_key(t): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())

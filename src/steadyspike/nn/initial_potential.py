"""Initial membrane potentials U[0]: MP-Init (the paper's), a constant, or a learned one (IMP)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Real
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.scan.cpu.neuron_calls import Start
from steadyspike.nn.checkpoint import first_runs, recall, recomputing, store
from steadyspike.nn.snapshot import snapshot
from steadyspike.nn.sync import Group, sum_over_processes, world_size


class InitialPotential(nn.Module):
    """Base class: computes a layer's U[0]. In training mode it may update itself after each forward."""

    def bind(self, channels: int | None) -> None:
        """Called once by the layer.

        channels: None for one value per layer, C for one per channel
        """

    def potential(self, x: Tensor) -> Tensor:
        """Returns U[0] for input ``x`` [T, B, ...]: shape [1], [C] or broadcastable to x.shape[1:]."""
        raise NotImplementedError

    def update(self, active: Tensor) -> None:
        """Called after each training forward; ``active`` is `ScanResult.active` of the scan."""

    # True if C++ can replace `potential` and `update`, see `native_start`. False for a subclass that overrides one of
    # these but not `native_start`. This is decided when the class is defined.
    has_native_start: ClassVar[bool] = False
    # True if `potential` may depend on the values of x, which must then be in memory. A subclass with a `potential` of
    # its own sets it to False if only shape, device and dtype of x count.
    reads_input: ClassVar[bool] = True

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "potential" in cls.__dict__ and "reads_input" not in cls.__dict__:
            cls.reads_input = True
        # If a subclass or a mixin changes the Python code but not what C++ does, C++ must not compute it.
        names = {"potential", "update", "native_start"}
        changed = next(names & base.__dict__.keys() for base in cls.__mro__ if names & base.__dict__.keys())
        cls.has_native_start = "native_start" in changed

    def native_start(self, training: bool, dtype: torch.dtype) -> Start | None:
        """Returns what C++ needs to do `potential` and `update` itself; None if these have to be called.

        training: the layer is in training mode, so that `update` is due
        dtype: of the arithmetic
        """
        return None


class MPInit(InitialPotential):
    """MP-Init (paper section 4, Algorithm 1): U[0] is a running mean of U[T] over neurons that fired in the window.

    The mean is the buffer ``running_mean`` ([1] or [C], starts at 0), saved and copied with the layer. Like the
    statistics of batch norm it is updated after every forward in training mode, also under ``torch.no_grad``. It is
    never updated in evaluation mode, or when activation checkpointing recomputes a forward. It does not change if no
    neuron fired or if the batch's mean is not finite.

    momentum: weight of the new batch, ``mean = (1 - momentum) mean + momentum batch``
        The paper's released code uses 0.1. The formula in the paper's text, with beta = 0.9 taken literally, would be
        momentum=0.9.
    sync: sum over all processes of ``group``, so that every rank has the mean of the whole batch
    """

    reads_input: ClassVar[bool] = False
    running_mean: Tensor

    def __init__(self, momentum: float = 0.1, sync: bool = True, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum is the weight of the new batch and must be in (0, 1]; got {momentum}")
        self.momentum, self.sync, self.group = momentum, sync, Group(group)
        self.register_buffer("running_mean", torch.zeros(1))

    def bind(self, channels: int | None) -> None:
        self.running_mean = torch.zeros(channels or 1)

    def potential(self, x: Tensor) -> Tensor:
        # A copy, because the update changes the buffer in place and the backward needs the value that the forward used.
        if not self.training:
            return self.running_mean.clone()
        if recomputing():
            return recall(self)
        mean = snapshot(self.running_mean)
        store(self, mean)
        return mean

    def native_start(self, training: bool, dtype: torch.dtype) -> Start | None:
        mean = self._buffers.get("running_mean")
        if mean is None or mean.dtype != dtype or mean.requires_grad or mean.is_inference() or not mean.is_contiguous():
            return None
        mean = unwrapped(mean)
        if not (training or self.training):
            return Start(mean)
        # C++ supports neither checkpoints, which store a value of this forward, nor sums over several processes.
        if recomputing() or first_runs() or (self.sync and world_size(self.group.group) > 1):
            return None
        return Start(mean, 0.0, self.momentum if training else 0.0)

    @torch.no_grad()
    def update(self, active: Tensor) -> None:
        if recomputing():
            return
        total, count = (sum_over_processes(active, self.group.group) if self.sync else active).detach().unbind()
        old = self.running_mean.to(total.dtype)
        # 0 / 0 if no neuron fired: the step is then not finite and is left out.
        step = (total / count).sub_(old).mul_(self.momentum).nan_to_num_(0.0, 0.0, 0.0)
        self.running_mean.copy_(step.add_(old))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MPInit:
        """Keeps the mean in float32 in a half-precision model, in which small updates would be rounded away."""
        mean = self.running_mean
        super()._apply(fn, recurse)
        if self.running_mean.dtype in (torch.float16, torch.bfloat16):
            self.running_mean = mean.to(self.running_mean.device)
        return self

    def extra_repr(self) -> str:
        return f"momentum={self.momentum}" + ("" if self.sync else ", sync=False")


class ConstantInit(InitialPotential):
    """A constant U[0]; 0 is the usual choice in the literature."""

    reads_input: ClassVar[bool] = False

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        if not math.isfinite(value):
            raise ValueError(f"the initial potential must be finite, got {value}")
        self.value = float(value)

    def potential(self, x: Tensor) -> Tensor:
        return torch.full((1,), self.value, device=x.device)

    def native_start(self, training: bool, dtype: torch.dtype) -> Start | None:
        return Start(None, _rounded(self.value, torch.get_default_dtype()))

    def extra_repr(self) -> str:
        return f"{self.value:g}"


@lru_cache(maxsize=4096)
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype, device="cpu"))  # also inside of a "with torch.device"


class LearnedInit(InitialPotential):
    """IMP (Shen et al., 2024): a learned U[0], a parameter of shape (1, *shape) that all samples share.

    shape: the neurons of one sample, e.g. (C, H, W), or (C, 1, 1) per channel. The layer then accepts only this size.

    low, high: the start is uniform in this range; (0.4, 0.6) as in the authors' IF and LIF nodes with V = 1
    """

    reads_input: ClassVar[bool] = False
    no_decay: ClassVar[tuple[str, ...]] = ("value",)

    def __init__(self, shape: Sequence[int], low: float = 0.4, high: float = 0.6) -> None:
        super().__init__()
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"low and high must be finite with low <= high, got {low} and {high}")
        self.value = nn.Parameter(torch.empty(1, *shape).uniform_(low, high))

    def potential(self, x: Tensor) -> Tensor:
        needed = (1, *x.shape[2:])
        fits = self.value.ndim == len(needed) and all(n in (1, w) for n, w in zip(self.value.shape, needed))
        if not fits:
            raise ValueError(
                f"LearnedInit has the shape {tuple(self.value.shape[1:])}, but the layer's neurons have the shape "
                f"{needed[1:]} per sample; build it with that shape"
            )
        return self.value

    def extra_repr(self) -> str:
        return f"shape={tuple(self.value.shape[1:])}"


def resolve_init(init: str | float | InitialPotential, channels: int | None) -> InitialPotential:
    """The `InitialPotential` for ``"mp"``, ``"zero"``, a number or an instance, which is copied for each layer."""
    if isinstance(init, type) and issubclass(init, InitialPotential):
        init = init()
    if isinstance(init, InitialPotential):
        init = copy.deepcopy(init)
    elif isinstance(init, str):
        if init not in ("mp", "zero"):
            raise ValueError(f"unknown initial potential {init!r}; known: mp, zero, a number, MPInit, LearnedInit")
        init = MPInit() if init == "mp" else ConstantInit()
    elif isinstance(init, Real):
        init = ConstantInit(float(init))
    else:
        raise TypeError(f"init must be 'mp', 'zero', a number, MPInit or LearnedInit, got {init!r}")
    init.bind(channels)
    return init

"""Base classes of the norms over [T, B, C, ...]: options, running statistics, input checks."""

from __future__ import annotations

from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steadyspike.core.unpack import Unpack as Unpack
from steadyspike.nn.checkpoint import recomputing
from steadyspike.nn.norm.statistics import Moments, moments
from steadyspike.nn.snapshot import snapshot
from steadyspike.nn.sync import Group, world_size
from steadyspike.nn.whole import whole_number


class NormOptions(TypedDict, total=False):
    """The keyword options of every norm; see `TimeNorm`."""

    eps: float
    momentum: float
    bias: bool
    sync: bool
    group: dist.ProcessGroup | None


class TimeNorm(nn.Module):
    """Base class of batch norms over [T, B, C, ...].

    steps: number of rows of the parameters and statistics, [steps, C]; None: one row [C] for all time steps
    momentum: weight of the new batch in the running statistics, as in ``nn.BatchNorm2d``
    sync: in training mode, compute statistics over all processes of ``group`` (gloo or nccl)

    Under activation checkpointing (torch.utils.checkpoint) the running statistics are updated once per forward. A
    checkpoint around a compiled norm raises an error; a compiled function that contains a checkpoint works.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        steps: int | None = None,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        bias: bool = True,
        sync: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        if momentum is None or not 0 < momentum <= 1:
            raise ValueError(f"momentum is the weight of the new batch and must be in (0, 1]; got {momentum}")
        self.channels, self.eps, self.momentum, self.sync = channels, eps, momentum, sync
        # A process group can be neither copied nor pickled: copies of a `Group` share it, pickles leave it out.
        self.group = Group(group)
        shape = (channels,) if steps is None else (steps, channels)
        self.weight = nn.Parameter(torch.ones(shape))
        self.register_parameter("bias", nn.Parameter(torch.zeros(shape)) if bias else None)
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))

    @property
    def synchronises(self) -> bool:
        """Returns True if this forward computes its statistics over several processes."""
        return self.sync and self.training and world_size(self.group.group) > 1

    @property
    def tracks(self) -> bool:
        """Returns True if this forward updates the running statistics."""
        return self.training and not recomputing()

    def running(self) -> tuple[Tensor, Tensor]:
        """Returns running mean and variance for a forward that updates them.

        In a recomputation, copies that are discarded.

        They are copies and not None, because a recomputed operator must save as many tensors as in the first forward.
        """
        if recomputing():
            return self.running_mean.clone(), self.running_var.clone()
        return self.running_mean, self.running_var

    def count_batch(self) -> None:
        """Counts one more training batch; raises an error if a compiled norm is recomputed."""
        if not self.tracks:
            return
        if torch.compiler.is_compiling():
            # `recomputing` cannot detect this during compilation; the operator in `snapshot` checks it when the graph
            # runs.
            self.num_batches_tracked.copy_(snapshot(self.num_batches_tracked) + 1)
        else:
            self.num_batches_tracked.add_(1)

    def batch_moments(self, x: Tensor, axes: list[int]) -> Moments:
        """Computes `moments` with this norm's synchronisation."""
        return moments(x, axes, sync=self.sync, group=self.group.group)

    def check_input(self, x: Tensor) -> None:
        """Raises an error if ``x`` is not a floating-point [T, B, C, ...] with this norm's number of channels."""
        name = type(self).__name__
        if not x.is_floating_point():
            raise TypeError(f"{name} takes floating-point input, got {x.dtype}; convert with x.float()")
        if x.ndim < 3 or x.shape[2] != self.channels:
            raise ValueError(
                f"{name} takes [T, B, {self.channels}, ...] with time first and channels on axis 2, "
                f"got shape {list(x.shape)}"
            )
        if x.shape[0] == 0:
            raise ValueError(f"{name} needs at least one time step, got shape {list(x.shape)} (T = 0)")

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}" + ("" if self.sync else ", sync=False")


class StepNorm(TimeNorm):
    """Base class of norms with separate parameters for every time step.

    Training needs exactly ``timesteps`` steps. Evaluation may use fewer steps, with the parameters of the first ones.
    """

    def __init__(self, channels: int, timesteps: int, **options: Unpack[NormOptions]) -> None:
        steps = whole_number(timesteps, "timesteps")
        super().__init__(channels, steps, **options)
        self.timesteps = steps

    def check_input(self, x: Tensor) -> None:
        super().check_input(x)
        check_steps(self, x.shape[0], self.timesteps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, timesteps={self.timesteps}"


def check_steps(norm: nn.Module, steps: int, timesteps: int) -> None:
    """Raises an error if the per-step parameters do not fit an input of ``steps`` time steps."""
    name = type(norm).__name__
    if steps > timesteps:
        raise ValueError(
            f"{name} has parameters for {timesteps} time steps and cannot run {steps}; build it with timesteps={steps}"
        )
    if norm.training and steps != timesteps:
        raise ValueError(
            f"{name} has parameters for {timesteps} time steps but is trained on {steps}; "
            "fewer steps (a prefix) are allowed in evaluation mode only"
        )

"""The settings of one call of the fused node (`fused.py`) besides its tensors: `Job`, and the plan that calls share.

Calls of the same shape share a plan. It is computed once, because for a small layer this takes longer than the scan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.conv.call import ConvInput
from steadyspike.kernels.layout import KEPT_SHAPES, are_dense_steps
from steadyspike.kernels.scan.arguments import check_shapes
from steadyspike.kernels.scan.contract import Affine, Call
from steadyspike.kernels.scan.cpu.neuron_calls import Start, start_tensor, statistics
from steadyspike.kernels.scan.cpu.plan import FIXED, LinkRange, Plan, plan_for
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.packed import PackedSpikes

_ONE = torch.Size([1])


class Link(Protocol):
    """How a constant is computed from a parameter, see `nn.parametrization.Link`."""

    @property
    def forward(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def native(self) -> LinkRange: ...
    def limited(self, raw: Tensor) -> Tensor: ...
    def value(self, raw: Tensor) -> Tensor: ...


Links = tuple[Link | None, Link | None]


class Statistics(NamedTuple):
    """Mean and 1 / sd of a batch, [C], for a norm in training."""

    mean: Tensor
    invstd: Tensor

    def followed(self, y: Tensor) -> Statistics:
        """Returns the same values with the gradients that the statistics of ``y`` [T, B, C, ...] have."""
        var, mean = torch.var_mean(y, [i for i in range(y.ndim) if i != 2], correction=0)
        slope = -0.5 * self.invstd**3  # of 1 / sqrt(var + eps)
        return Statistics(self.mean + (mean - mean.detach()), self.invstd + slope * (var - var.detach()))


Norms = tuple[Statistics | None, Statistics | None]


class Job:
    """One call of the node: all arguments without a gradient, and results of the forward that the backward needs.

    links: of V and of 1/tau; None for a constant that is given directly
    start: None if U[0] is a tensor
    norms: the statistics of x and of extra; None for a norm in evaluation, or without a norm
    spikes: extra as bits until the forward has run; the bits are then saved and freed like tensors
    source: identifies extra
    conv: the convolution whose output is x, if C++ computes it with the scan; x then has no values
    repeated: the node's x is [1, B, ...] and the same at every step
    trained: whether gradients are enabled, which cannot be queried inside the node
    inside: False if a parameter was out of its range
    """

    norms: Norms = (None, None)
    spikes: PackedSpikes | None = None
    like: tuple[Tensor, torch.Size, tuple[int, ...]] | None = None  # value, shape and strides of ``spikes``
    source: Tensor | None = None
    conv: ConvInput | None = None
    repeated = False
    potential = False
    inside = True
    computed: tuple[Tensor | None, Tensor | None] = (None, None)
    scales: tuple[Tensor, Tensor, Tensor | None]  # scale, shift, and scale of extra
    layout: tuple[object, ...] = ()  # of U[0] and extra

    def __init__(self, plan: Plan, links: Links, start: Start | None, x_memory: tuple[Any, ...]) -> None:
        self.plan, self.links, self.start, self.x_memory = plan, links, start, x_memory
        self.memory: ctypes.Array[Any] = plan.memory()
        self.trained = torch.is_grad_enabled()

    def at_every_step(self, x: Tensor) -> Tensor:
        """Returns the node's x as [T, B, ...]."""
        return x.expand(self.x_memory[0]) if self.repeated else x

    def active(self, out: Tensor) -> Tensor:
        """Returns `ScanResult.active` of the forward that returned ``out``."""
        if has_no_values(out):
            return out.new_empty(self.plan.active, dtype=torch.float64)
        return statistics(self.plan, self.memory)

    def u0(self, out: Tensor) -> Tensor:
        """Returns U[0] of a forward whose start was not a tensor."""
        if has_no_values(out):
            return out.new_empty(self.plan.numbers, dtype=self.plan.compute)
        return start_tensor(self.plan, self.memory)


@lru_cache(maxsize=KEPT_SHAPES)
def _plan(
    x_memory: tuple[Any, ...],
    u0: torch.Size,
    own_start: int,
    k: torch.Size,
    w: torch.Size,
    codes: tuple[int, ...],
    constants: tuple[float, ...],
    membrane: bool,
    channelwise: bool,
    links: tuple[LinkRange, LinkRange],
) -> Plan | None:
    """Returns the plan that calls of the node share; None if the node does not support this memory layout.

    It also checks the shapes.

    x_memory: shape, strides and dtype of x
    own_start: C++ makes U[0]: 1 from a number, 2 from a mean of shape u0
    """
    x, strides, dtype = x_memory
    check_shapes(x, dtype, u0, k, w)
    channels = (x[2] if len(x) > 2 else 1) if channelwise else 1
    if not are_dense_steps(x, strides) or (own_start == 2 and u0.numel() != channels):
        return None
    return plan_for(x_memory, Call(codes, constants, membrane, channelwise), u0, k, w, own_start > 0, links)


def fused_job(
    x: Tensor,
    k: Tensor,
    w: Tensor,
    start: Any,
    spec: ScanSpec,
    links: Links = (None, None),
    membrane: bool = False,
    channelwise: bool = False,
) -> Job | None:
    """Returns the job of a scan of ``x`` from ``start``; None if x is not dense or the mean has a wrong size.

    membrane: M is requested
    channelwise: MP-Init's statistics per channel
    """
    to_v, to_a = links
    x_memory = x.shape, x.stride(), x.dtype
    if type(start) is not Start:
        u0, own_start, native = start.shape, 0, None
    else:
        native, mean = start, start.mean
        u0, own_start = (_ONE, 1) if mean is None else (mean.shape, 2)
    ranges = FIXED if to_v is None else to_v.native, FIXED if to_a is None else to_a.native
    plan = _plan(x_memory, u0, own_start, k.shape, w.shape, spec.codes, spec.constants, membrane, channelwise, ranges)
    return None if plan is None else Job(plan, links, native, x_memory)


def layout(t: Tensor | None) -> tuple[object, ...]:
    """Returns shape, strides and dtype."""
    return () if t is None else (t.shape, t.stride(), t.dtype)


def affine_of(statistics: Statistics | None, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (scale, shift) of a norm: computed from its statistics, or weight and bias themselves."""
    if statistics is None:
        return weight, bias
    scale = weight * statistics.invstd
    return scale, bias - statistics.mean * scale


def scales_of(
    norms: Norms, weight: Tensor, bias: Tensor, weight2: Tensor | None, bias2: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns scale and shift of the current, and the scale of extra if it has a norm."""
    scale, shift = affine_of(norms[0], weight, bias)
    if weight2 is None or bias2 is None:
        return scale, shift, None
    scale2, shift2 = affine_of(norms[1], weight2, bias2)
    return scale, shift + shift2, scale2


def current_map(job: Job, extra: Tensor | None, words: Tensor | None) -> Affine:
    """Returns the current as C++ computes it.

    words: the bits of an ``extra`` that is spikes
    """
    scale, shift, scale2 = job.scales
    return Affine(scale, shift, None if words is not None else extra, scale2, words)


def mapped(x: Tensor, scales: tuple[Tensor, Tensor, Tensor | None], extra: Tensor | None) -> Tensor:
    """Returns the current scale x + shift [+ extra, or scale2 extra] as a tensor, with the scan's rounding.

    It uses several operators, because one operator might use a fused multiply-add.

    scale, shift: [C] or [T, C]
    """
    scale, shift, scale2 = scales
    current = x * over_steps(scale, x.ndim) + over_steps(shift, x.ndim)
    if extra is None:
        return current
    return current + (extra if scale2 is None else extra * over_steps(scale2, x.ndim))


def over_steps(p: Tensor, ndim: int) -> Tensor:
    """Reshapes [C] or [T, C] so that it broadcasts over [T, B, C, ...]."""
    return p.view(*((len(p), 1) if p.ndim == 2 else ()), p.shape[-1], *([1] * (ndim - 3)))

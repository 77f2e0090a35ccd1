"""A whole neuron layer as one call of C++ (csrc/neuron): norms as scale and shift, start, scan, MP-Init's update.

Shapes, dtypes and modes of the tensors are not checked here; the callers have checked them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.torch_private import count_change
from steadyspike.kernels.conv.call import ConvInput
from steadyspike.kernels.library import LIBRARY, load_library
from steadyspike.kernels.scan.contract import Affine, Gradients, NormSums
from steadyspike.kernels.scan.cpu.abi import ABI, AffineStruct, pack_backward, pack_forward
from steadyspike.kernels.scan.cpu.norm_gradient import FUNCTIONS as NORM_FUNCTIONS
from steadyspike.kernels.scan.cpu.plan import Plan
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.sizes_only import has_no_values

_NAMES = ("steadyspike_neuron_forward", "steadyspike_neuron_backward", "steadyspike_neuron_abi", *NORM_FUNCTIONS)
_STATUS = {1: "an argument is out of range", 2: "out of memory for its scratch space"}
_MOVED, _OUTSIDE = 3, 4  # NeuronStatus of csrc/neuron/neuron_abi.h


class Start(NamedTuple):
    """The start of a layer: at ``mean``, MP-Init's [1] or [C], or at ``value`` if there is no mean.

    momentum: the weight of the new batch in the mean; 0 does not change the mean
    """

    mean: Tensor | None
    value: float = 0.0
    momentum: float = 0.0


# V and a, and the parameters from which they come; None for a fixed one, or if C++ need not check it. This and the
# types below are plain tuples, because making a named tuple takes as long as several checks.
RunConstants = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class Build:
    """The library to call, and its instruction set: an index into `instruction_sets`, or -1 for the best one."""

    def __init__(self, path: Path = LIBRARY, isa: int = -1) -> None:
        self.path, self.isa = path, isa

    @cached_property
    def functions(self) -> Sequence[Callable[[bytes], int]]:
        """The forward and the backward."""
        library = load_library(_NAMES, self.path)
        assert not isinstance(library, str)  # a plan was made
        return [getattr(library, name) for name in _NAMES[:2]]


_BEST = Build()


@cache
def why_no_library(path: Path = LIBRARY) -> str | None:
    """Returns None if the library at ``path`` has these functions, otherwise the reason."""
    library = load_library(_NAMES, path)
    if isinstance(library, str):
        return library
    if library.steadyspike_neuron_abi() == ABI:
        return None
    return f"{path.name} was built from another version of the sources; reinstall steadyspike"


def _raise(name: str, status: int) -> None:
    raise RuntimeError(f"the C++ kernel ({name}) failed: {_STATUS.get(status, f'status {status}')}")


def _affine_struct(x: Tensor, affine: Affine) -> AffineStruct:
    """Returns the addresses of ``affine`` for a scan of ``x``; they are valid as long as its tensors exist."""
    extra, extra_scale, bits = affine.extra, affine.extra_scale, affine.extra_bits
    between = bits.stride(0) if bits is not None else 0 if extra is None else extra.stride(0)
    return AffineStruct(
        *(x.shape[2], x.stride(2) if x.shape[2] > 1 else x.numel() // x.shape[0]),
        *(affine.scale.data_ptr(), affine.shift.data_ptr()),
        *(None if t is None else t.data_ptr() for t in (extra, extra_scale)),
        *(between, affine.scale.stride(0) if affine.scale.ndim == 2 else 0, None if bits is None else bits.data_ptr()),
    )


def neuron_forward(
    plan: Plan,
    x: Tensor,
    constants: RunConstants,
    start: Start | Tensor | None,
    memory: ctypes.Array[Any],
    affine: Affine | None = None,
    words: SpikeWords | None = None,
    potential: bool = False,
    build: Build = _BEST,
    conv: ConvInput | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """Runs the scan of x, or of its ``affine`` map.

    With ``conv``, x is the output of that convolution and only C++ computes its values.

    Returns (out, U[T] if ``potential``, M if the plan's call requests it).

    start: U[0], or its source; a mean is updated

    memory: `Plan.memory`, filled with the statistics and U[0]
    words: filled with the spikes

    Returns None if a parameter is out of its range; then nothing was computed.
    """
    v, a, k, w = constants
    active = ctypes.addressof(memory)
    out = torch.empty_like(x) if plan.dense else x.new_empty_strided(x.shape, plan.strides)
    u = x.new_empty_strided(plan.step, plan.step_strides, dtype=plan.compute) if potential else None
    m = x.new_empty_strided(x.shape, plan.strides, dtype=plan.compute) if plan.call.membrane else None
    if type(x) is not Tensor and has_no_values(x):
        return out, u, m
    # C++ computes U[0] into the block of the statistics; otherwise it reads the tensor of the caller.
    if type(start) is Start:
        u0 = own = active + plan.u0
        mean, value, momentum = start
    else:
        u0, own, mean, value, momentum = start.data_ptr(), 0, None, 0.0, 0.0  # type: ignore[union-attr]
    current = None if affine is None else _affine_struct(x, affine)
    source = None if conv is None else conv.struct(build.isa)
    bits, needed, counts = (None, None, None) if words is None else words
    # The order is that of the C struct. An address of 0 means that the tensor is not used.
    status = build.functions[0](
        plan.fixed
        + pack_forward(
            x.data_ptr(),
            u0,
            v.data_ptr(),
            a.data_ptr(),
            x.stride(0),
            0 if current is None else ctypes.addressof(current),
            0 if source is None else ctypes.addressof(source),
            torch.get_num_threads(),
            build.isa,
            out.data_ptr(),
            0 if u is None else u.data_ptr(),
            0 if m is None else m.data_ptr(),
            active,
            plan.call.channelwise,
            0 if bits is None else bits.data_ptr(),
            0 if needed is None else needed.data_ptr(),
            0 if counts is None else counts.data_ptr(),
            0 if k is None else k.data_ptr(),
            0 if w is None else w.data_ptr(),
            own,
            0 if mean is None else mean.data_ptr(),
            value,
            momentum,
        )
    )
    # C++ has changed the mean; autograd must count this like a change by torch.
    if status == _MOVED:
        assert mean is not None
        count_change(mean)
    elif status == _OUTSIDE:
        return None
    elif status:
        _raise("forward", status)
    return out, u, m


def start_tensor(plan: Plan, memory: ctypes.Array[Any]) -> Tensor:
    """Returns the U[0] from which a forward started, if that was not a tensor."""
    return torch.frombuffer(memory, dtype=plan.compute, count=plan.numbers, offset=plan.u0)


def statistics(plan: Plan, memory: ctypes.Array[Any]) -> Tensor:
    """Returns MP-Init's statistics of a forward, `ScanResult.active`."""
    return torch.frombuffer(memory, dtype=torch.float64, count=math.prod(plan.active)).view(plan.active)


def neuron_backward(
    plan: Plan,
    x: Tensor,
    constants: RunConstants,
    u0: Any,
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
    needs: Sequence[bool],
    affine: Affine | None = None,
    norm: NormSums | None = None,
    build: Build = _BEST,
) -> Gradients:
    """Gradients of the current, of U[0], and of the parameters of V and a (of V and a themselves if they are fixed).

    u0: the tensor, or the forward's memory
    gradients: as `OutputGradients`, with the layout of x
    needs: whether U[0], V and a need a gradient
    norm: filled during the scan
    """
    v, a, k, w = constants
    dx = torch.empty_like(x) if plan.dense else x.new_empty_strided(x.shape, plan.strides)
    du0 = torch.empty_like(u0) if needs[0] else None
    dv = torch.empty_like(v) if needs[1] else None
    da = torch.empty_like(a) if needs[2] else None
    if type(x) is not Tensor and has_no_values(x):
        return dx, du0, dv, da
    g, g_u, g_m = gradients
    current = None if affine is None else _affine_struct(x, affine)
    # As in the forward: the order of the C struct, and 0 for a tensor that is not used.
    status = build.functions[1](
        plan.fixed
        + pack_backward(
            x.data_ptr(),
            ctypes.addressof(u0) + plan.u0 if plan.numbers else u0.data_ptr(),
            v.data_ptr(),
            a.data_ptr(),
            x.stride(0),
            0 if current is None else ctypes.addressof(current),
            0,
            torch.get_num_threads(),
            build.isa,
            0 if g is None else g.data_ptr(),
            0 if g_u is None else g_u.data_ptr(),
            0 if g_m is None else g_m.data_ptr(),
            0 if g is None else g.stride(0),
            0 if g_m is None else g_m.stride(0),
            dx.data_ptr(),
            0 if du0 is None else du0.data_ptr(),
            0 if dv is None else dv.data_ptr(),
            0 if da is None else da.data_ptr(),
            0,
            0,
            0 if norm is None else norm.center.data_ptr(),
            0 if norm is None else norm.sums.data_ptr(),
            0 if k is None else k.data_ptr(),
            0 if w is None else w.data_ptr(),
        )
    )
    if status:
        _raise("backward", status)
    return dx, du0, dv, da

"""A scan with what a neuron layer computes around it, as one call of C++ (csrc/neuron): the start at MP-Init's running
mean, the mean's step, and in the backward the slopes of V and 1/tau.

For tensors that were checked: nothing here asks for shapes, dtypes or modes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.torch_private import count_change
from steadyspike.kernels.library import load_library
from steadyspike.kernels.scan.contract import Call, Gradients
from steadyspike.kernels.scan.cpu.abi import MEMORY_FIELDS, BackwardStruct, ForwardStruct, ScanStruct, packer
from steadyspike.kernels.scan.cpu.backend import STATUS
from steadyspike.kernels.scan.cpu.scan_plan import ScanPlan, plan_for
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords

_NAMES = ("steadyspike_neuron_forward", "steadyspike_neuron_backward", "steadyspike_neuron_abi")
_MOVED, _OUTSIDE = 3, 4  # NeuronStatus of csrc/neuron/neuron_abi.h
_pointer, _int, _double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

_LINKS = [(name, _int) for name in ("v_link", "a_link")]
_LINKS += [(name, _double) for name in ("v_low", "v_high", "a_low", "a_high", "least_slope")]  # type: ignore[misc]
_AROUND = [(name, _pointer) for name in ("k", "w", "u0", "mean")]
_AROUND += [(name, _double) for name in ("start", "momentum")]  # type: ignore[misc]
_pack_links = packer(_LINKS).pack
_pack_forward = packer([*MEMORY_FIELDS, *ForwardStruct._fields_, *_AROUND]).pack
_pack_backward = packer([*MEMORY_FIELDS, *BackwardStruct._fields_, *_AROUND[:2]]).pack
_EIGHTS = 8 * len(_LINKS) + ctypes.sizeof(ScanStruct)
_ABI = (_EIGHTS + ctypes.sizeof(ForwardStruct) + 8 * len(_AROUND)) * 10000
_ABI += _EIGHTS + ctypes.sizeof(BackwardStruct) + 16


class Start(NamedTuple):
    """Where a layer starts: at ``mean``, MP-Init's [1] or [C], or at ``value`` if that is None.

    momentum: the weight of the new batch in the mean; 0 leaves the mean as it is.
    """

    mean: Tensor | None
    value: float = 0.0
    momentum: float = 0.0


class LinkRange(NamedTuple):
    """How C++ computes a constant's slope: the code of its function, and the range of its parameter. 0: it is fixed."""

    code: int = 0
    low: float = 0.0
    high: float = 0.0


class NeuronPlan(NamedTuple):
    """What calls have in common that differ in values only.

    scan, call: of the scan alone. fixed: the C struct up to its addresses. memory: makes room for MP-Init's statistics
    and, at ``u0`` bytes from its beginning, the ``numbers`` of U[0]. dense: x has the strides of a new tensor.
    """

    scan: ScanPlan
    call: Call
    fixed: bytes
    memory: Callable[[], ctypes.Array[Any]]
    u0: int
    numbers: int
    dense: bool


def neuron_plan(
    shape: torch.Size,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    call: Call,
    numbers: tuple[int, int, int],
    ranges: tuple[LinkRange, LinkRange],
    least_slope: float,
) -> NeuronPlan:
    """shape, strides, dtype: of x, with dense steps. numbers: how many U[0], V and a have. ranges: of V and a."""
    u0_count, v_count, a_count = numbers
    scan = plan_for(shape, strides, dtype, call, (u0_count > 1, v_count > 1, a_count > 1))
    v, a = ranges
    links = _pack_links(v.code, a.code, v.low, v.high, a.low, a.high, least_slope)
    statistics = math.prod(scan.active)
    memory = _double * (statistics + u0_count)
    return NeuronPlan(
        scan, call, links + scan.settings, memory, 8 * statistics, u0_count, dense=strides == scan.strides
    )


class RunConstants(NamedTuple):
    """V and a, and the addresses of the parameters that they come from; 0 for a constant that is fixed."""

    v: Tensor
    a: Tensor
    k: int
    w: int


@cache
def why_no_neuron_calls() -> str | None:
    """None if the C++ library has these functions, else the reason."""
    library = load_library(_NAMES)
    if isinstance(library, str):
        return library
    return None if library.steadyspike_neuron_abi() == _ABI else "it was built from another version of the sources"


@cache
def _function(name: str) -> Callable[[bytes], int]:
    library = load_library(_NAMES)
    assert not isinstance(library, str)
    return getattr(library, name)


def _raise(name: str, status: int) -> None:
    raise RuntimeError(f"the C++ kernel ({name}) failed: {STATUS.get(status, f'status {status}')}")


def neuron_forward(
    plan: NeuronPlan,
    x: Tensor,
    constants: RunConstants,
    start: Start,
    memory: ctypes.Array[Any],
    words: SpikeWords | None = None,
) -> Tensor | None:
    """The scan of x from ``start``; the mean takes its step. None if a parameter is out of its range: nothing was done.

    memory: `NeuronPlan.memory`; it has U[0] for the backward.
    """
    v, a, k, w = constants
    mean, value, momentum = start
    scan, active = plan.scan, ctypes.addressof(memory)
    u0 = active + plan.u0
    out = torch.empty_like(x) if plan.dense else x.new_empty_strided(x.shape, scan.strides)
    status = _function(_NAMES[0])(
        plan.fixed
        + _pack_forward(
            *(x.data_ptr(), u0, v.data_ptr(), a.data_ptr(), x.stride(0), 0, torch.get_num_threads(), -1),
            *(out.data_ptr(), 0, 0, active, plan.call.channelwise),
            *((0, 0, 0) if words is None else words.addresses()),
            *(k, w, u0, 0 if mean is None else mean.data_ptr(), value, momentum),
        )
    )
    if status == _MOVED:
        assert mean is not None
        count_change(mean)
    elif status == _OUTSIDE:
        return None
    elif status:
        _raise("forward", status)
    return out


def start_tensor(plan: NeuronPlan, memory: ctypes.Array[Any]) -> Tensor:
    """The U[0] that a forward started from."""
    return torch.frombuffer(memory, dtype=plan.scan.compute, count=plan.numbers, offset=plan.u0)


def neuron_backward(
    plan: NeuronPlan,
    x: Tensor,
    constants: RunConstants,
    memory: ctypes.Array[Any],
    g: Tensor,
    wants_v: bool,
    wants_a: bool,
) -> Gradients:
    """The gradients of x and of the parameters of V and a, or of V and a where they are fixed, from ``g``, that of the
    output. U[0] has none."""
    v, a, k, w = constants
    dx = torch.empty_like(x) if plan.dense else x.new_empty_strided(x.shape, plan.scan.strides)
    dv = torch.empty_like(v) if wants_v else None
    da = torch.empty_like(a) if wants_a else None
    u0 = ctypes.addressof(memory) + plan.u0
    status = _function(_NAMES[1])(
        plan.fixed
        + _pack_backward(
            *(x.data_ptr(), u0, v.data_ptr(), a.data_ptr(), x.stride(0), 0, torch.get_num_threads(), -1),
            *(g.data_ptr(), 0, 0, g.stride(0), 0, dx.data_ptr(), 0),
            *(0 if dv is None else dv.data_ptr(), 0 if da is None else da.data_ptr(), 0, 0, 0, 0, k, w),
        )
    )
    if status:
        _raise("backward", status)
    return dx, None, dv, da

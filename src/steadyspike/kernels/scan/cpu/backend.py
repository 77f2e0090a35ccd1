"""The C++ scan of csrc/scan behind the `Backend` contract: tensors become pointers and sizes, called through ctypes."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, channel_count, compute_dtype, empty_steps
from steadyspike.kernels.library import LIBRARY, instruction_sets, load_library
from steadyspike.kernels.scan.contract import Affine, NormSums, OutputGradients, Results, Scan
from steadyspike.kernels.scan.cpu.abi import ABI, AffineStruct, BackwardStruct, ForwardStruct, ScanStruct
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.sizes_only import has_no_values

FUNCTIONS = ("steadyspike_lif_forward", "steadyspike_lif_backward", "steadyspike_lif_abi")
STATUS = {1: "an argument is out of range", 2: "out of memory for its scratch space"}


class CpuBackend:
    """The C++ LIF scan. ``isa``: index into `instruction_sets`, or -1 for the best this CPU has."""

    name = "cpu"

    def __init__(self, library: Path = LIBRARY, isa: int = -1) -> None:
        self.path = library
        self.isa = isa

    @cached_property
    def _loaded(self) -> ctypes.CDLL | str:
        """The library, or the reason why there is none."""
        library = load_library(FUNCTIONS, self.path)
        if not isinstance(library, str) and library.steadyspike_lif_abi() != ABI:
            return f"{self.path.name} was built from another version of the sources; reinstall steadyspike"
        return library

    @property
    def instruction_sets(self) -> list[str]:
        """The instruction sets this build can use on this CPU, the best last."""
        return instruction_sets(self._library())

    def why_not(self, x: Tensor) -> str | None:
        if x.device.type != "cpu":
            return f"the tensor is on {x.device.type}, not on the CPU"
        if x.dtype not in DTYPES:
            return f"it has no kernel for {x.dtype}"
        return self._loaded if isinstance(self._loaded, str) else None

    def forward(self, scan: Scan, words: SpikeWords | None = None, *, potential: bool = True) -> Results:
        """See `Backend.forward`; ``words`` is filled with the output's spikes as bits. potential: False for an
        empty tensor instead of U[T]."""
        x, call = scan.x, scan.call
        dtype = compute_dtype(x)
        out = empty_steps(x, x.dtype)
        u = torch.empty_like(x[0], dtype=dtype) if potential else x.new_empty((0,), dtype=dtype)
        m = empty_steps(x, dtype) if call.membrane else x.new_empty((0,), dtype=dtype)
        shape = (2, channel_count(x) if call.channelwise else 1)
        if x.numel() == 0:
            return out, u, m, x.new_zeros(shape, dtype=torch.float64)
        active = x.new_empty(shape, dtype=torch.float64)
        if has_no_values(x):
            return out, u, m, active
        pointers = (
            out.data_ptr(),
            u.data_ptr() if potential else None,
            m.data_ptr() if call.membrane else None,
            active.data_ptr(),
        )
        bits = () if words is None else words.pointers()
        struct, io = _scan_struct(scan, self.isa), ForwardStruct(*pointers, call.channelwise, *bits)
        status = self._library().steadyspike_lif_forward(ctypes.byref(struct), ctypes.byref(io))
        if status != 0:
            raise _failed("forward", status)
        return out, u, m, active

    def backward(self, scan: Scan, gradients: OutputGradients, norm: NormSums | None = None) -> Results:
        """See `Backend.backward`; ``norm`` is filled, for a scan with an affine map."""
        x, u0, v, a, *_ = scan
        dx = empty_steps(x, x.dtype)
        if x.numel() == 0:
            return dx, torch.zeros_like(u0), torch.zeros_like(v), torch.zeros_like(a)
        du0, dv, da = torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)
        if has_no_values(x):
            return dx, du0, dv, da
        struct = _scan_struct(scan, self.isa)
        io = BackwardStruct(
            *(None if g is None else g.data_ptr() for g in gradients),
            *(0 if g is None else g.stride(0) for g in (gradients.out, gradients.m)),
            *(d.data_ptr() for d in (dx, du0, dv, da)),
            *(() if norm is None else (norm.center.data_ptr(), norm.sums.data_ptr())),
        )
        status = self._library().steadyspike_lif_backward(ctypes.byref(struct), ctypes.byref(io))
        if status != 0:
            raise _failed("backward", status)
        return dx, du0, dv, da

    def _library(self) -> ctypes.CDLL:
        if isinstance(self._loaded, str):
            raise RuntimeError(f"backend 'cpu' cannot run here: {self._loaded}")
        return self._loaded


def _failed(function: str, status: int) -> RuntimeError:
    return RuntimeError(f"the C++ kernel ({function}) failed: {STATUS.get(status, f'status {status}')}")


def _scan_struct(scan: Scan, isa: int) -> ScanStruct:
    x, u0, v, a, call, affine = scan
    n = x[0].numel()
    u0_kind = 0 if u0.numel() == 1 else 2 if u0.shape == x.shape[1:] else 1
    v_kind, a_kind = int(v.numel() > 1), int(a.numel() > 1)
    channels, inner = 1, n
    if channel_count(x) > 1 and (call.channelwise or v_kind or a_kind or u0_kind == 1):
        channels, inner = x.shape[2], x.stride(2)
    return ScanStruct(
        *(DTYPES.index(x.dtype), x.shape[0], n, channels, inner),
        *call.codes,
        *call.constants,
        *(u0_kind, v_kind, a_kind),
        *(t.data_ptr() for t in (x, u0, v, a)),
        *(x.stride(0), _affine_struct(x, affine), torch.get_num_threads(), isa),
    )


def _affine_struct(x: Tensor, affine: Affine | None) -> ctypes._Pointer[AffineStruct] | None:
    if affine is None:
        return None
    extra, extra_scale, bits = affine.extra, affine.extra_scale, affine.extra_bits
    between = bits.stride(0) if bits is not None else 0 if extra is None else extra.stride(0)
    struct = AffineStruct(
        *(x.shape[2], x.stride(2) if x.shape[2] > 1 else x[0].numel()),
        *(affine.scale.data_ptr(), affine.shift.data_ptr()),
        *(None if t is None else t.data_ptr() for t in (extra, extra_scale)),
        *(between, affine.scale.stride(0) if affine.scale.ndim == 2 else 0, None if bits is None else bits.data_ptr()),
    )
    return ctypes.pointer(struct)

"""The C++ scan of csrc/scan behind the `Backend` contract: tensors become pointers and sizes, called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, channel_count, compute_dtype, empty_steps
from steadyspike.kernels.library import LIBRARY, instruction_sets, load_library
from steadyspike.kernels.scan.contract import Affine, Forwarded, Gradients, NormSums, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.abi import ABI, AffineStruct, pack_backward, pack_forward, pack_memory
from steadyspike.kernels.scan.cpu.scan_plan import ScanPlan, plan_of
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.sizes_only import has_no_values

FUNCTIONS = ("steadyspike_lif_forward", "steadyspike_lif_backward", "steadyspike_lif_abi")
_FUNCTION = {"forward": FUNCTIONS[0], "backward": FUNCTIONS[1]}
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

    def forward(self, scan: Scan, words: SpikeWords | None = None, *, potential: bool = True) -> Forwarded:
        """See `Backend.forward`; ``words`` is filled with the output's spikes as bits. potential: False for None
        instead of U[T]."""
        x, call = scan.x, scan.call
        if x.numel() == 0:
            return _forward_of_nothing(scan)
        plan = plan_of(scan)
        out = x.new_empty_strided(x.shape, plan.strides)
        u = m = None
        if potential:
            u = x.new_empty_strided(plan.step, plan.step_strides, dtype=plan.compute)
        if call.membrane:
            m = x.new_empty_strided(x.shape, plan.strides, dtype=plan.compute)
        active = x.new_empty(plan.active, dtype=torch.float64)
        if not has_no_values(x):
            bits, needed, counts = (0, 0, 0) if words is None else words.addresses()
            io = pack_forward(
                out.data_ptr(),
                0 if u is None else u.data_ptr(),
                0 if m is None else m.data_ptr(),
                *(active.data_ptr(), call.channelwise, bits, needed, counts),
            )
            self._call("forward", plan, scan, io)
        return out, u, m, active

    def backward(self, scan: Scan, gradients: OutputGradients, norm: NormSums | None = None) -> Gradients:
        """See `Backend.backward`; ``norm`` is filled, for a scan with an affine map."""
        x, u0, v, a, _, _ = scan
        if x.numel() == 0:
            return empty_steps(x, x.dtype), torch.zeros_like(u0), torch.zeros_like(v), torch.zeros_like(a)
        plan = plan_of(scan)
        dx = x.new_empty_strided(x.shape, plan.strides)
        du0, dv, da = torch.empty_like(u0), torch.empty_like(v), torch.empty_like(a)
        if not has_no_values(x):
            out, _, m = gradients
            io = pack_backward(
                *(0 if g is None else g.data_ptr() for g in gradients),
                *(0 if out is None else out.stride(0), 0 if m is None else m.stride(0)),
                *(dx.data_ptr(), du0.data_ptr(), dv.data_ptr(), da.data_ptr(), 0, 0),
                *((0, 0) if norm is None else (norm.center.data_ptr(), norm.sums.data_ptr())),
            )
            self._call("backward", plan, scan, io)
        return dx, du0, dv, da

    def _call(self, name: str, plan: ScanPlan, scan: Scan, io: bytes) -> None:
        """Calls the C++ function of this name; raises if it failed."""
        x, u0, v, a, _, affine = scan
        current = None if affine is None else affine_struct(x, affine)
        memory = pack_memory(
            *(x.data_ptr(), u0.data_ptr(), v.data_ptr(), a.data_ptr(), x.stride(0)),
            *(0 if current is None else ctypes.addressof(current), torch.get_num_threads(), self.isa),
        )
        status = self._functions[name](plan.settings + memory, io)
        if status != 0:
            raise RuntimeError(f"the C++ kernel ({name}) failed: {STATUS.get(status, f'status {status}')}")

    @cached_property
    def _functions(self) -> dict[str, Callable[[bytes, bytes], int]]:
        return {name: getattr(self._library(), function) for name, function in _FUNCTION.items()}

    def _library(self) -> ctypes.CDLL:
        if isinstance(self._loaded, str):
            raise RuntimeError(f"backend 'cpu' cannot run here: {self._loaded}")
        return self._loaded


def _forward_of_nothing(scan: Scan) -> Forwarded:
    x, call, dtype = scan.x, scan.call, compute_dtype(scan.x)
    active = x.new_zeros((2, channel_count(x) if call.channelwise else 1), dtype=torch.float64)
    m = empty_steps(x, dtype) if call.membrane else None
    return empty_steps(x, x.dtype), torch.empty_like(x[0], dtype=dtype), m, active


def affine_struct(x: Tensor, affine: Affine) -> AffineStruct:
    """The addresses of ``affine`` for a scan of ``x``; valid as long as its tensors exist."""
    extra, extra_scale, bits = affine.extra, affine.extra_scale, affine.extra_bits
    between = bits.stride(0) if bits is not None else 0 if extra is None else extra.stride(0)
    return AffineStruct(
        *(x.shape[2], x.stride(2) if x.shape[2] > 1 else x.numel() // x.shape[0]),
        *(affine.scale.data_ptr(), affine.shift.data_ptr()),
        *(None if t is None else t.data_ptr() for t in (extra, extra_scale)),
        *(between, affine.scale.stride(0) if affine.scale.ndim == 2 else 0, None if bits is None else bits.data_ptr()),
    )

"""The C++ scan as a `Backend`: it uses the functions of the fused node (`neuron_calls.py`) for the operator."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, channel_count, compute_dtype, empty_steps
from steadyspike.kernels.library import LIBRARY, instruction_sets, load_library
from steadyspike.kernels.scan.contract import Forwarded, Gradients, NormSums, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.neuron_calls import (
    Build,
    neuron_backward,
    neuron_forward,
    statistics,
    why_no_library,
)
from steadyspike.kernels.scan.cpu.plan import Plan, plan_for
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.sizes_only import has_no_values


class CpuBackend:
    """The C++ LIF scan.
    ``isa``: index into `instruction_sets`, or -1 for the best one of this CPU
    """

    name = "cpu"

    def __init__(self, library: Path = LIBRARY, isa: int = -1) -> None:
        self.build = Build(library, isa)

    @property
    def instruction_sets(self) -> list[str]:
        """Returns the instruction sets that this build can use on this CPU, the best last."""
        library = load_library((), self.build.path)
        if isinstance(library, str):
            raise RuntimeError(f"backend 'cpu' cannot run here: {library}")
        return instruction_sets(library)

    def why_not(self, x: Tensor) -> str | None:
        if x.device.type != "cpu":
            return f"the tensor is on {x.device.type}, not on the CPU"
        if x.dtype not in DTYPES:
            return f"it has no kernel for {x.dtype}"
        return why_no_library(self.build.path)

    def forward(self, scan: Scan, words: SpikeWords | None = None, *, potential: bool = True) -> Forwarded:
        """See `Backend.forward`.

        words: filled with the output's spikes as bits
        potential: False returns None instead of U[T]
        """
        self._check()
        x, u0, v, a, _, affine = scan
        if x.numel() == 0:
            return _forward_of_nothing(scan)
        plan = _plan(scan)
        memory, constants = plan.memory(), (v, a, None, None)
        results = neuron_forward(plan, x, constants, u0, memory, affine, words, potential, self.build)
        assert results is not None
        active = x.new_empty(plan.active, dtype=torch.float64) if has_no_values(x) else statistics(plan, memory)
        return *results, active

    def backward(self, scan: Scan, gradients: OutputGradients, norm: NormSums | None = None) -> Gradients:
        """See `Backend.backward`.

        norm: filled, for a scan with an affine map
        """
        self._check()
        x, u0, v, a, _, affine = scan
        if x.numel() == 0:
            return empty_steps(x, x.dtype), torch.zeros_like(u0), torch.zeros_like(v), torch.zeros_like(a)
        constants, all_of_them = (v, a, None, None), (True, True, True)
        return neuron_backward(_plan(scan), x, constants, u0, gradients, all_of_them, affine, norm, self.build)

    def _check(self) -> None:
        if (reason := why_no_library(self.build.path)) is not None:
            raise RuntimeError(f"backend 'cpu' cannot run here: {reason}")


def _plan(scan: Scan) -> Plan:
    x, u0, v, a, call, _ = scan
    return plan_for((x.shape, x.stride(), x.dtype), call, u0.shape, v.shape, a.shape)


def _forward_of_nothing(scan: Scan) -> Forwarded:
    x, call, dtype = scan.x, scan.call, compute_dtype(scan.x)
    active = x.new_zeros((2, channel_count(x) if call.channelwise else 1), dtype=torch.float64)
    m = empty_steps(x, dtype) if call.membrane else None
    return empty_steps(x, x.dtype), torch.empty_like(x[0], dtype=dtype), m, active

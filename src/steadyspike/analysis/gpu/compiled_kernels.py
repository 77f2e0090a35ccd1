"""The Triton kernels compiled for GPUs that are not available: registers, spills, shared memory and occupancy.

The sources are the launches that the backend would start, on tensors without memory. A kernel that does not compile, or
that spills registers, is therefore detected on any machine with Triton.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.layout import compute_dtype, empty_steps
from steadyspike.kernels.scan.contract import Affine, Call, OutputGradients, Scan
from steadyspike.kernels.scan.triton.backend import backward_launch, forward_launch
from steadyspike.kernels.scan.triton.launch import FIXED, Launch
from steadyspike.kernels.scan.triton.norm_backend import BLOCK, moments_launch, norm_gradient_launch


@dataclass(frozen=True)
class Target:
    """A GPU architecture: its name in Triton, and the capacity of one multiprocessor (compute unit).

    lanes: threads of a warp
    warps, blocks: the largest number that can run at a time
    registers: of 4 bytes, per lane of all warps together
    shared: bytes of shared memory
    granule: a warp gets registers in multiples of this number, per lane
    """

    backend: str
    arch: int | str
    lanes: int
    warps: int
    blocks: int
    registers: int
    shared: int
    granule: int = 8

    def occupancy(self, warps: int, registers: int, shared: int) -> float:
        """Returns the share of the possible warps that run at a time, for blocks of ``warps`` warps."""
        per_lane = math.ceil(max(registers, 1) / self.granule) * self.granule
        by_registers = self.registers // per_lane // warps
        by_shared = self.shared // (max(shared, 1) + (1024 if self.backend == "cuda" else 0))
        return min(by_registers, by_shared, self.blocks, self.warps // warps) * warps / self.warps


# CUDA reserves 1 KB of shared memory per block. Registers: 65,536 for 32 lanes; on gfx942 512 in each of four parts of
# a compute unit.
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 64, 32, 2048, 164 * 1024),
    "sm_86": Target("cuda", 86, 32, 48, 16, 2048, 100 * 1024),
    "sm_89": Target("cuda", 89, 32, 48, 24, 2048, 100 * 1024),
    "sm_90": Target("cuda", 90, 32, 64, 32, 2048, 228 * 1024),
    "sm_100": Target("cuda", 100, 32, 64, 32, 2048, 228 * 1024),
    "gfx942": Target("hip", "gfx942", 64, 32, 32, 2048, 64 * 1024),
}
CARDS = {"sm_80": "A100", "sm_86": "RTX 3090", "sm_89": "RTX 4090", "sm_90": "H100"}
CARDS |= {"sm_100": "B200", "gfx942": "MI300"}


@dataclass(frozen=True)
class Usage:
    """The needs of a compiled kernel: registers per thread, bytes of them spilled, bytes of shared memory per block."""

    registers: int
    spilled: int
    shared: int
    occupancy: float


def compiled(launch: Launch, target: str, config: tuple[int, int] = FIXED) -> Any:
    """Compiles the launch as Triton's own launcher would, which decides what is a constant and what is aligned."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    to = TARGETS[target]
    kernel, card = launch.kernel, GPUTarget(to.backend, to.arch, to.lanes)
    arguments = launch.arguments | launch.options(*config)
    if to.backend == "hip":
        arguments.pop("maxnreg", None)
    backend = make_backend(card)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, extra = bind(**arguments)
    options, *described = kernel._pack_args(backend, arguments, bound, specialization, extra)
    return triton.compile(ASTSource(kernel, *described), target=card, options=options.__dict__)


def usage(kernel: Any, target: str, warps: int) -> Usage:
    """Returns the assembler's statistics of a `compiled` kernel."""
    if target == "gfx942":
        text = kernel.asm["amdgcn"]
        number = {name: int(re.findall(rf"\.{name}:\s+(\d+)", text)[-1]) for name in _OF_AMD}
        registers, spilled = number["vgpr_count"] + number["agpr_count"], 4 * number["vgpr_spill_count"]
    else:
        registers, spilled = _of_cubin(kernel.asm["cubin"])
    shared = kernel.metadata.shared
    return Usage(registers, spilled, shared, TARGETS[target].occupancy(warps, registers, shared))


_OF_AMD = ("vgpr_count", "agpr_count", "vgpr_spill_count")


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    """Returns (registers, bytes of stack). The kernels have no arrays, so a stack means that registers were spilled."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", done.stdout)[-1]
    return int(registers), int(stack)


def layer_launches(
    timesteps: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    *,
    channels_last: bool = False,
    norm: bool = True,
    shortcut: str = "none",
    spec: ScanSpec | None = None,
) -> dict[str, tuple[Launch, tuple[int, int]]]:
    """Returns every launch of a training step of one layer [T, 64, 128, 32, 32] with its (block, warps), by name.

    shortcut: "none", "spikes" (a tensor that is added to the current), or "norm" (with a norm of its own)
    """
    spec = spec or ScanSpec()
    shape = (timesteps, 64, 32, 32, 128) if channels_last else (timesteps, 64, 128, 32, 32)
    x = torch.empty(shape, dtype=dtype, device="meta")
    x = x.movedim(-1, 2) if channels_last else x

    def per_channel() -> Tensor:
        return torch.empty(128, dtype=compute_dtype(x), device="meta")

    number = torch.empty(1, dtype=compute_dtype(x), device="meta")
    like = empty_steps(x, dtype)
    affine = None
    if norm:
        extra = None if shortcut == "none" else like
        affine = Affine(per_channel(), per_channel(), extra, per_channel() if shortcut == "norm" else None)
    scan = Scan(x, number, number, number, Call.of(spec, backend="triton"), affine)
    gradients = OutputGradients(like)
    forward, _ = forward_launch(scan, like, None, None)
    backward, _ = backward_launch(scan, gradients, like, None, None if shortcut == "none" else like)
    launches = {"forward": (forward, forward.fixed), "backward": (backward, backward.fixed)}
    if norm:
        launches["moments"] = (moments_launch(x)[0], BLOCK)
        launches["norm gradient"] = (norm_gradient_launch(like, x, per_channel(), per_channel(), like), BLOCK)
    return launches

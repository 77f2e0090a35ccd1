"""Lists the compiled backends, and chooses the way and the backend for a call."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import why_not_compiled
from steadyspike.core.torch_private import constant_while_compiling
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.scan.contract import Backend

BACKENDS = ("auto", "reference", "cpu", "triton")
COMPILED = ("cpu", "triton")


@cache
def get_backend(name: str) -> Backend:
    """Returns the compiled backend of that name (``"cpu"`` or ``"triton"``)."""
    if name == "cpu":
        from steadyspike.kernels.scan.cpu.backend import CpuBackend

        return CpuBackend()
    if name == "triton":
        from steadyspike.kernels.scan.triton.backend import TritonBackend

        return TritonBackend()
    raise ValueError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")


@cache
def _choose(backend: str, device: str, dtype: torch.dtype) -> str:
    if backend == "reference":
        return backend
    probe = torch.empty(0, dtype=dtype, device=device)
    if backend != "auto":
        reason = get_backend(backend).why_not(probe)
        if reason is not None:
            raise RuntimeError(f"backend {backend!r} cannot run here: {reason}")
        return backend
    candidate = {"cpu": "cpu", "cuda": "triton"}.get(device)
    if candidate is None or get_backend(candidate).why_not(probe) is not None:
        return "reference"
    return candidate


@constant_while_compiling
def _choose_while_compiling(backend: str, device: str, dtype: torch.dtype) -> str:
    return _choose(backend, device, dtype)


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"this layer runs on the PyTorch reference, which is slower: {reason}", stacklevel=2)


def choose_backend(backend: str, x: Tensor, spec: ScanSpec | None = None) -> str:
    """Returns the backend that runs ``spec`` on ``x``.

    ``"auto"`` is the fastest one; any other choice raises an error if it cannot run.

    The compiled backends have a backward and no other derivative, so torch.func's transforms need the reference.
    Surrogates without compiled code need it too; one warning reports this.

    spec: if it is left out, a built-in surrogate is assumed
    """
    # A compiler cannot trace the caches, warnings and checks below; while compiling, the choice is a constant.
    if torch.compiler.is_compiling():
        chosen = _choose_while_compiling(backend, x.device.type, x.dtype)
        if spec is None or chosen == "reference" or spec.codes[1] >= 0:
            return chosen
        if backend == "auto":
            return "reference"
        raise RuntimeError(f"backend {backend!r} has no code for the surrogate; use backend='auto' or 'reference'")
    chosen = _choose(backend, x.device.type, x.dtype)
    if chosen == "reference":
        return chosen
    if is_transformed():
        if backend == "auto":
            return "reference"
        raise RuntimeError(
            f"torch.func and forward-mode derivatives do not work with backend {backend!r}; "
            "use backend='auto' or 'reference' there"
        )
    return chosen if spec is None else _with_code_for(spec, backend, chosen)


def choose_way(backend: str, spec: ScanSpec, x: Tensor, *others: Tensor) -> str:
    """Which of the three ways computes a scan of ``x``: ``"fused"``, ``"reference"``, or the operator, by its backend.

    Fused: an eager call on the CPU (also that of a memory estimate) with the C++ library.
    Operator: compilers, export, other devices, tensors without elements.
    Reference: torch.func, and if there is no kernel.

    The choice depends only on the layer and the tensors.

    others: all other tensors that the node would read
    """
    if not (x.is_cpu and runs_directly(x, *others)):
        return choose_backend(backend, x, spec)
    chosen = _choose(backend, "cpu", x.dtype)
    chosen = chosen if chosen == "reference" else _with_code_for(spec, backend, chosen)
    if chosen != "cpu" or x.numel() == 0:
        return chosen
    for t in others:
        if not t.is_cpu:  # the checks of the operator report the problem
            return chosen
    return "fused"


def _with_code_for(spec: ScanSpec, backend: str, chosen: str) -> str:
    """Returns ``chosen`` if the compiled backend has code for the surrogate."""
    reason = why_not_compiled(spec.surrogate)
    if reason is None:
        return chosen
    if backend == "auto":
        _say_once(reason)
        return "reference"
    raise RuntimeError(f"backend {backend!r} cannot run this layer: {reason}; use backend='auto' or 'reference'")


def backend_report(x: Tensor) -> dict[str, str]:
    """Returns, for each backend, ``"available"`` or the reason why it cannot run on ``x``."""
    report = {"reference": "available"}
    for name in COMPILED:
        report[name] = get_backend(name).why_not(x) or "available"
    return report

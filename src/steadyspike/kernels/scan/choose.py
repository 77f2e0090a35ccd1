"""Which compiled backends exist, and which one runs a call."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.scan.contract import Backend

BACKENDS = ("auto", "reference", "cpu", "triton")


@cache
def get_backend(name: str) -> Backend:
    """The compiled backend of that name (``"cpu"`` or ``"triton"``)."""
    if name == "cpu":
        from steadyspike.kernels.scan.cpu.backend import CpuBackend

        return CpuBackend()
    if name == "triton":
        from steadyspike.kernels.scan.triton.backend import TritonBackend

        return TritonBackend()
    raise ValueError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")


@cache
def _choose(backend: str, device: str, dtype: torch.dtype) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
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


def _choose_while_compiling(backend: str, device: str, dtype: torch.dtype) -> str:
    return _choose(backend, device, dtype)


# What torch.compiler.assume_constant_result does; that function would import the whole compiler with this package.
_choose_while_compiling._dynamo_marked_constant = True  # type: ignore[attr-defined]


def choose_backend(backend: str, x: Tensor) -> str:
    """The backend that will run on ``x``: an explicit choice that cannot run raises, ``"auto"`` takes the best.

    The compiled ones have a backward and no other derivative: torch.func's transforms need the reference.
    """
    if torch.compiler.is_compiling():
        return _choose_while_compiling(backend, x.device.type, x.dtype)
    if backend != "reference" and is_transformed():
        if backend == "auto":
            return "reference"
        raise RuntimeError(
            f"torch.func and forward-mode derivatives do not see through backend {backend!r}; "
            "use backend='auto' or 'reference' there"
        )
    return _choose(backend, x.device.type, x.dtype)


def backend_report(x: Tensor) -> dict[str, str]:
    """For each backend, ``"available"`` or the reason why it cannot run on ``x``."""
    report = {"reference": "available"}
    for name in ("cpu", "triton"):
        report[name] = get_backend(name).why_not(x) or "available"
    return report

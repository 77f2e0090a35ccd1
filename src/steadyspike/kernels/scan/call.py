"""``lif_scan``: the only entry point to the LIF scan, for all backends."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.layout import compute_dtype, dense_steps, like_step
from steadyspike.kernels.scan.arguments import check_arguments
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import Links, fused_job
from steadyspike.kernels.scan.operator import lif_scan_op


def lif_scan(
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    spec: ScanSpec,
    *,
    membrane: bool = False,
    channelwise: bool = False,
    backend: str = "auto",
) -> ScanResult:
    """Runs the LIF scan of `core.reference_scan` on the chosen backend.

    x: [T, B, ...]
    u0: [1], [C] or broadcastable to x.shape[1:]
    v, a: [1] or [C]

    ``membrane``: also return M

    ``channelwise``: reduce the MP-Init statistics per channel

    ``backend``: ``"auto"``, ``"reference"``, ``"cpu"``, ``"triton"``; an explicit choice that cannot run raises an
        error
    """
    check_arguments(x, u0, v, a)
    way = choose_way(backend, spec, x, u0, v, a)
    if way == "reference":
        return reference_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise)
    dtype = compute_dtype(x)
    v, a = v.to(dtype).contiguous(), a.to(dtype).contiguous()
    if way == "fused":
        return fused_result(x, u0, v, a, spec, (None, None), membrane, channelwise)
    call = Call.of(spec, membrane, channelwise, way)
    out, u, m, active = lif_scan_op(x, start_tensor(u0, x, dtype), v, a, *call)
    return ScanResult(out, u, m if membrane else None, active)


def fused_result(
    x: Tensor, u0: Tensor, k: Tensor, w: Tensor, spec: ScanSpec, links: Links, membrane: bool, channelwise: bool
) -> ScanResult:
    """Runs the scan of x from ``u0`` by the fused node, with U[T]; for k, w, links see `fused_scan`."""
    x = unwrapped(dense_steps(x))
    u0 = unwrapped(start_tensor(u0, x, compute_dtype(x)))
    job = fused_job(x, k, w, u0, spec, links, membrane, channelwise)
    assert job is not None
    job.potential = True
    out, u, m = fused_scan(job, x, unwrapped(k), unwrapped(w), u0)
    return ScanResult(out, u, m, job.active(out))


def start_tensor(u0: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns U[0] in the form that node and operator need.

    dtype: of the arithmetic
    """
    if u0.ndim > 1 or (x.ndim == 2 and u0.shape == x.shape[1:]):
        return like_step(u0.to(dtype), x)
    return u0 if u0.dtype == dtype and u0.is_contiguous() else u0.to(dtype).contiguous()

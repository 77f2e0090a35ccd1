"""``lif_scan``: the one entry point to the LIF scan, whatever computes it."""

from __future__ import annotations

from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.core.torch_private import unwrapped
from steadyspike.kernels.layout import compute_dtype, dense_steps, like_step
from steadyspike.kernels.scan.arguments import check_arguments
from steadyspike.kernels.scan.choose import choose_way
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import fused_job
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
    """The LIF scan of `core.reference_scan` on the chosen backend.

    x [T, B, ...]; u0 [1], [C] or broadcastable to x.shape[1:]; v, a [1] or [C]. ``membrane`` also returns M.
    ``channelwise`` reduces the MP-Init statistics per channel. ``backend``: ``"auto"``, ``"reference"``, ``"cpu"``,
    ``"triton"``; an explicit choice that cannot run raises.
    """
    check_arguments(x, u0, v, a)
    way = choose_way(backend, spec, x, u0, v, a)
    if way == "reference":
        return reference_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise)
    dtype = compute_dtype(x)
    u0, v, a = u0.to(dtype), v.to(dtype).contiguous(), a.to(dtype).contiguous()
    u0 = like_step(u0, x) if u0.ndim > 1 or u0.shape == x.shape[1:] else u0.contiguous()
    if way == "fused":
        x = unwrapped(dense_steps(x))
        job = fused_job(x, v, a, u0, spec, (None, None), membrane, channelwise)
        assert job is not None
        job.potential = True
        out, u, m = fused_scan(job, x, *(unwrapped(t) for t in (v, a, u0)))
        return ScanResult(out, u, m, job.active(out))
    out, u, m, active = lif_scan_op(x, u0, v, a, *Call.of(spec, membrane, channelwise, way))
    return ScanResult(out, u, m if membrane else None, active)

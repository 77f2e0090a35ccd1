"""``lif_scan``: the one entry point to the LIF scan, whatever computes it."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.layout import compute_dtype, like_step
from steadyspike.kernels.scan.arguments import check_arguments
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.operator import DirectScan, lif_scan_op


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
    chosen = choose_backend(backend, x, spec)
    if chosen == "reference":
        return reference_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise)
    dtype = compute_dtype(x)
    u0, v, a = u0.to(dtype), v.to(dtype).contiguous(), a.to(dtype).contiguous()
    u0 = like_step(u0, x) if u0.ndim > 1 or u0.shape == x.shape[1:] else u0.contiguous()
    call = Call.of(spec, membrane, channelwise, chosen)
    if runs_directly(x, u0, v, a):
        out, u, m, active = DirectScan.apply(x, u0, v, a, call, torch.is_grad_enabled())
    else:
        out, u, m, active = lif_scan_op(x, u0, v, a, *call)
    return ScanResult(out, u, m if membrane else None, active)

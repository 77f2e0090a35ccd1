"""The LIF scan on a GPU: the Triton kernels as a `Backend`.

Triton is imported on first use. The kernels have no state. `forward_launch` and `backward_launch` compute what a launch
needs. They also run without a GPU, so that tests can compile exactly what a GPU would get.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.kernels.layout import DTYPES, channel_count, compute_dtype, empty_steps
from steadyspike.kernels.scan.contract import Affine, AffineGradients, OutputGradients, Results, Scan
from steadyspike.kernels.scan.triton.launch import (
    BACKWARD_WORDS,
    FIXED,
    FIXED_SMALL,
    Launch,
    interpreting,
    plan_segments,
    plan_tiles,
)

OLDEST_TRITON = (3, 3)  # the first version with tuples in kernels, which hold a segment's steps in registers


def _why_no_triton() -> str | None:
    try:
        import triton
    except ImportError as error:
        return f"triton is not installed (pip install triton): {error}"
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {triton.__version__} is too old, {'.'.join(map(str, OLDEST_TRITON))} or newer is needed"
    return None


class TritonBackend:
    """Triton kernels for tensors on a GPU (CUDA or ROCm); CPU tensors only in Triton's interpreter.

    ``fixed`` (block, warps) replaces the tuning of the block size; block is a power of two of at least 256
    """

    name = "triton"

    def __init__(self, fixed: tuple[int, int] | None = None) -> None:
        self.fixed = fixed

    def why_not(self, x: Tensor) -> str | None:
        """Returns None if it can run on ``x``, otherwise the reason in one sentence."""
        reason = _why_no_triton()
        if reason is not None:
            return reason
        if x.device.type != "cuda" and not (x.device.type == "cpu" and interpreting()):
            return f"the tensor is on {x.device}, Triton kernels need a GPU (a cuda device, CUDA or ROCm)"
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype} is not supported, use one of {', '.join(str(d) for d in DTYPES)}"
        return None

    def forward(self, scan: Scan, *, potential: bool = True) -> Results:
        """See `Backend.forward`.

        potential: False returns an empty tensor instead of U[T]
        """
        x, call = scan.x, scan.call
        dtype = compute_dtype(x)
        out = empty_steps(x, x.dtype)
        u = torch.empty_like(x[0], dtype=dtype) if potential else x.new_empty((0,), dtype=dtype)
        m = empty_steps(x, dtype) if call.membrane else x.new_empty((0,), dtype=dtype)
        if x.numel() == 0:
            active = x.new_zeros((2, channel_count(x) if call.channelwise else 1), dtype=torch.float64)
            return out, u, m, active
        launch, partial = forward_launch(scan, out, u if potential else None, m if call.membrane else None)
        launch.run(x.device, self.fixed)
        active = partial.sum(1)
        return out, u, m, active if call.channelwise else active.sum(1, keepdim=True)

    def backward(self, scan: Scan, gradients: OutputGradients) -> Results:
        """See `Backend.backward`; for scans without an affine map."""
        dx = empty_steps(scan.x, scan.x.dtype)
        return (dx, *self._backward(scan, gradients, dx, None)[0])

    def affine_backward(self, scan: Scan, gradients: OutputGradients, extra: bool) -> AffineGradients:
        """Returns the gradients of a scan with an affine map of [C].

        extra: whether the gradient of the extra current is requested
        """
        dx, affine = empty_steps(scan.x, scan.x.dtype), scan.affine
        assert affine is not None
        dextra = empty_steps(scan.x, scan.x.dtype) if extra else None
        parameters, (dshift, dscale, dextra_scale) = self._backward(scan, gradients, dx, dextra)
        dtype = affine.scale.dtype
        of_extra = None if affine.extra_scale is None else dextra_scale.to(dtype, copy=True)
        return AffineGradients(
            dx, *parameters, dscale.to(dtype, copy=True), dshift.to(dtype, copy=True), dextra, of_extra
        )

    def _backward(
        self, scan: Scan, gradients: OutputGradients, dx: Tensor, dextra: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Returns (du0, dv, da) and the sums [3, channels] of an affine map; fills dx and dextra."""
        x, u0, v, a, *_ = scan
        if x.numel() == 0:
            nothing = (torch.zeros_like(u0), torch.zeros_like(v), torch.zeros_like(a))
            return nothing, x.new_zeros((3, channel_count(x)), dtype=torch.float64)
        per_element = _u0_kind(u0, x) == 2
        du0 = torch.empty_like(x[0], dtype=u0.dtype) if per_element else None
        launch, partial = backward_launch(scan, gradients, dx, du0, dextra)
        launch.run(x.device, self.fixed)
        sums = partial.sum(1)
        dv, da, shared = sums[:3]
        return (_sum_to(shared, u0) if du0 is None else du0, _sum_to(dv, v), _sum_to(da, a)), sums[3:]


def forward_launch(scan: Scan, out: Tensor, u: Tensor | None, m: Tensor | None) -> tuple[Launch, Tensor]:
    """The forward kernel with its arguments, and its partial sums [2, slots, channels] of MP-Init's statistics."""
    from steadyspike.kernels.scan.triton.forward import forward_kernel

    x, u0, v, a, call, affine = scan
    family, _, reset, _, strict, decay_input = call.codes
    kinds = _parameter_kinds(x, u0, v, a)
    tiles = plan_tiles(x, call.channelwise or affine is not None or 1 in kinds.values())
    partial = x.new_empty((2, tiles.slots, tiles.channels), dtype=torch.float64)
    tensors = {"x_ptr": x, "u0_ptr": u0, "v_ptr": v, "a_ptr": a, "out_ptr": out, "u_ptr": u, "m_ptr": m}
    per_step = affine is not None and affine.scale.ndim == 2
    flags = {"SCALED": family == 2, "RESET": reset, "STRICT": bool(strict), "DECAY_INPUT": bool(decay_input)}
    arguments = {
        **tensors,
        **_affine_arguments(affine),
        "SCALE_PER_STEP": per_step,
        "partial_ptr": partial,
        "T": x.shape[0],
        "x_stride": x.stride(0),
        **tiles.arguments(),
        **flags,
        **kinds,
    }
    return Launch(forward_kernel, tiles, arguments, ("size_class", "BLOCK_C")), partial


def backward_launch(
    scan: Scan, gradients: OutputGradients, dx: Tensor, du0: Tensor | None, dextra: Tensor | None = None
) -> tuple[Launch, Tensor]:
    """Returns the backward kernel with its arguments, and its partial sums [3, slots, channels] of dV, da and dU0.

    With an affine map they are [6, slots, channels], with those of its shift, its scale and the scale of extra.
    """
    from steadyspike.kernels.scan.triton.backward import backward_kernel
    from steadyspike.kernels.scan.triton.surrogate import surrogate_constants

    x, u0, v, a, call, affine = scan
    g_out, g_u, g_m = gradients
    kinds = _parameter_kinds(x, u0, v, a)
    tiles = plan_tiles(x, affine is not None or 1 in kinds.values())
    # The row of dU0 is neither written nor used if du0 is per element. The same holds for the last row if extra has no
    # scale.
    partial = x.new_empty((3 if affine is None else 6, tiles.slots, tiles.channels), dtype=torch.float64)
    segments, steps = plan_segments(x.shape[0], v.dtype)
    starts = x.new_empty((segments, tiles.size), dtype=v.dtype) if segments > 1 else None
    edge, slope, height = surrogate_constants(call.codes[1], call.constants)
    names = ("FAMILY", "SURROGATE", "RESET", "DETACH", "STRICT", "DECAY_INPUT")
    arguments = {
        "g_out_ptr": g_out,
        "g_u_ptr": g_u,
        "g_m_ptr": g_m,
        "x_ptr": x,
        "u0_ptr": u0,
        "v_ptr": v,
        "a_ptr": a,
        **_affine_arguments(affine),
        "dx_ptr": dx,
        "dextra_ptr": dextra,
        "du0_ptr": du0,
        "start_ptr": starts,
        "partial_ptr": partial,
        "T": x.shape[0],
        "segments": segments,
        "g_out_stride": 0 if g_out is None else g_out.stride(0),
        "g_m_stride": 0 if g_m is None else g_m.stride(0),
        "x_stride": x.stride(0),
        **tiles.arguments(),
        "edge": edge,
        "slope": slope,
        "height": height,
        **dict(zip(names, call.codes)),
        **kinds,
        "STEPS": steps,
        "RAGGED": x.shape[0] % steps != 0,
    }
    # If a program has several channels, every element has its own parameters.
    with_extra, many = affine is not None and affine.extra is not None, tiles.block_c > 1
    words = (BACKWARD_WORDS[with_extra][steps - 1] + (10 if many else 0)) * v.dtype.itemsize / 4
    fixed = FIXED_SMALL if many or steps > 5 else FIXED
    key = ("size_class", "BLOCK_C", "STEPS")
    return Launch(backward_kernel, tiles, arguments, key, fixed=fixed, words=words), partial


def _affine_arguments(affine: Affine | None) -> dict[str, object]:
    """Returns the kernel arguments that describe the current as a map of x."""
    scale, shift, extra, extra_scale, _ = affine or Affine(None, None)  # type: ignore[arg-type]
    return {
        "scale_ptr": scale,
        "shift_ptr": shift,
        "extra_ptr": extra,
        "extra_scale_ptr": extra_scale,
        "extra_stride": 0 if extra is None else extra.stride(0),
    }


def _u0_kind(u0: Tensor, x: Tensor) -> int:
    """Returns 0 for a scalar, 1 for per channel, 2 for per element."""
    if u0.shape == x.shape[1:]:
        return 2
    return int(u0.numel() > 1)


def _parameter_kinds(x: Tensor, u0: Tensor, v: Tensor, a: Tensor) -> dict[str, int]:
    return {"U0_KIND": _u0_kind(u0, x), "V_PER_CHANNEL": int(v.numel() > 1), "A_PER_CHANNEL": int(a.numel() > 1)}


def _sum_to(per_channel: Tensor, like: Tensor) -> Tensor:
    """Returns a [channels] float64 sum in the shape and dtype of the parameter it belongs to."""
    total = per_channel.sum(0, keepdim=True) if like.numel() == 1 else per_channel
    # A copy, because the three sums are rows of one tensor and an operator must not return views of the same memory.
    return total.reshape(like.shape).to(like.dtype, copy=True)

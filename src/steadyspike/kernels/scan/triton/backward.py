# mypy: allow-untyped-defs, allow-incomplete-defs
# Triton reads the annotations of a Triton function, so only those that it supports are used.
"""The backward Triton kernel: the gradient of the scan by recomputing the membrane from x (paper eqs. 1 to 3).

Time is cut into segments of at most ``STEPS`` steps, which are so short that a segment's x and U stay in registers.
With one segment (T <= 8) x and g_out are read once and dx is written once; there is no other memory traffic. Longer
windows first run forward once and store U at the start of each segment in ``start_ptr`` [segments, N]; x is then read a
second time.

With a scale and a shift per channel (those of a norm) the current is computed again from x and ``extra``. The sums that
the norm needs are added up on the way: of dI (for the shift), dI x (for the scale) and dI extra.
"""

import triton
import triton.language as tl

from steadyspike.kernels.scan.triton.math import (
    advance,
    by_channel,
    charge,
    current,
    fire,
    initial,
    store_partial,
    tile,
    within,
)
from steadyspike.kernels.scan.triton.surrogate import surrogate


@triton.jit
def gradient_at(ptr, t, stride, T, offsets, mask, compute: tl.constexpr, RAGGED: tl.constexpr):
    """Returns the gradient tile of step t in the compute dtype.

    It is zero if there is no such gradient (ptr None) or step.
    """
    if ptr is None:
        return tl.zeros(offsets.shape, compute)
    else:
        if RAGGED:
            mask = within(mask, t, T)
        return tl.load(ptr + t * stride + offsets, mask=mask, other=0.0).to(compute)


@triton.jit
def step_gradient(
    g,
    g_m,
    du,
    m,
    s,
    v,
    inverse_v,
    edge,
    slope,
    height,
    FAMILY: tl.constexpr,
    SURROGATE: tl.constexpr,
    RESET: tl.constexpr,
    DETACH: tl.constexpr,
):
    """Returns (dL/dM, dL/dV of this step) from the gradients into O, M and U.

    ``gs`` is the gradient into S: through the output, and through the reset unless it is detached.
    """
    # The gradient into S: from the output (V S for trsg), and from the reset unless it is detached.
    gs = g
    if FAMILY == 2:
        gs = v * g
    if RESET == 0 and DETACH == 0:
        gs -= v * du
    if RESET == 1 and DETACH == 0:
        gs -= m * du
    # The surrogate passes it on to M and V: x = M - V for "as", x = M/V - 1 for the others.
    if FAMILY == 0:
        gx = gs * surrogate(m - v, edge, slope, height, SURROGATE)
        dm = gx
        dv = -gx
    else:
        ratio = m * inverse_v
        gx = gs * surrogate(ratio - 1, edge, slope, height, SURROGATE)
        dm = gx * inverse_v
        dv = -dm * ratio
    if FAMILY == 2:
        # trsg: O = V S depends on V directly.
        dv += g * s
    # The soft reset subtracts V S, so V gets -S, unless the whole product is detached.
    if RESET == 0 and DETACH != 2:
        dv -= du * s
    if RESET == 1:
        dm += du * (1 - s)
    else:
        dm += du
    return dm + g_m, dv


@triton.jit(do_not_specialize=["size_class"])
def backward_kernel(
    g_out_ptr,
    g_u_ptr,
    g_m_ptr,
    x_ptr,
    u0_ptr,
    v_ptr,
    a_ptr,
    scale_ptr,
    shift_ptr,
    extra_ptr,
    extra_scale_ptr,
    dx_ptr,
    dextra_ptr,
    du0_ptr,
    start_ptr,
    partial_ptr,
    T,
    segments,
    g_out_stride: tl.int64,
    g_m_stride: tl.int64,
    x_stride: tl.int64,
    extra_stride: tl.int64,
    step: tl.int64,
    per_channel,
    channels,
    inner,
    slots,
    size_class,
    edge: tl.float64,
    slope: tl.float64,
    height: tl.float64,
    FAMILY: tl.constexpr,
    SURROGATE: tl.constexpr,
    RESET: tl.constexpr,
    DETACH: tl.constexpr,
    STRICT: tl.constexpr,
    DECAY_INPUT: tl.constexpr,
    U0_KIND: tl.constexpr,
    V_PER_CHANNEL: tl.constexpr,
    A_PER_CHANNEL: tl.constexpr,
    STEPS: tl.constexpr,
    RAGGED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Goes through one tile backwards over all T steps.

    partial_ptr [3 or 6, slots, channels]: dV, da and, unless per element, dU0. With a scale it
    also has the sums of shift and scale and, if there is one, of the scale of extra.

    Gradients that are None are zeros. ``RAGGED``: the last segment is shorter than STEPS.
    """
    offsets, mask, c, row = tile(per_channel, channels, inner, WIDE, BLOCK_C, BLOCK)
    v = by_channel(v_ptr, c, channels, V_PER_CHANNEL)
    a = by_channel(a_ptr, c, channels, A_PER_CHANNEL)
    u = initial(u0_ptr, offsets, mask, c, channels, U0_KIND)
    compute: tl.constexpr = u.dtype
    inverse_v = 1 / v
    scale = None
    shift = None
    extra_scale = None
    if scale_ptr is not None:
        scale = by_channel(scale_ptr, c, channels, True)
        shift = by_channel(shift_ptr, c, channels, True)
    if extra_scale_ptr is not None:
        extra_scale = by_channel(extra_scale_ptr, c, channels, True)
    edge = tl.full((), edge, compute)
    slope = tl.full((), slope, compute)
    height = tl.full((), height, compute)

    if start_ptr is not None:
        for i in range(segments - 1):
            tl.store(start_ptr + i * step + offsets, u, mask=mask)
            for k in tl.static_range(STEPS):
                t = i * STEPS + k
                x = tl.load(x_ptr + t * x_stride + offsets, mask=mask, other=0.0).to(compute)
                extra = None
                if extra_ptr is not None:
                    extra = tl.load(extra_ptr + t * extra_stride + offsets, mask=mask, other=0.0).to(compute)
                u = advance(current(x, extra, scale, shift, extra_scale), u, v, a, RESET, STRICT, DECAY_INPUT)
        tl.store(start_ptr + (segments - 1) * step + offsets, u, mask=mask)
        # Makes the block's own writes visible to all its threads before they are read back.
        tl.debug_barrier()

    du = tl.zeros(offsets.shape, compute)
    if g_u_ptr is not None:
        du = tl.load(g_u_ptr + offsets, mask=mask, other=0.0)
    dv = tl.zeros(offsets.shape, compute)
    da = tl.zeros(offsets.shape, compute)
    if scale_ptr is not None:
        dshift = tl.zeros(offsets.shape, compute)
        dscale = tl.zeros(offsets.shape, compute)
        dextra_scale = tl.zeros(offsets.shape, compute)
    for i in range(segments):
        first = (segments - 1 - i) * STEPS
        if start_ptr is not None:
            u = tl.load(start_ptr + (segments - 1 - i) * step + offsets, mask=mask, other=0.0)
        xs = ()
        extras = ()
        us = ()
        for k in tl.static_range(STEPS):
            live = mask
            if RAGGED:
                live = within(mask, first + k, T)
            x = tl.load(x_ptr + (first + k) * x_stride + offsets, mask=live, other=0.0)
            xs = xs + (x,)  # type: ignore[assignment]
            us = us + (u,)  # type: ignore[assignment]
            extra = None
            if extra_ptr is not None:
                raw = tl.load(extra_ptr + (first + k) * extra_stride + offsets, mask=live, other=0.0)
                extras = extras + (raw,)  # type: ignore[assignment]
                extra = raw.to(compute)
            i_k = current(x.to(compute), extra, scale, shift, extra_scale)
            u = advance(i_k, u, v, a, RESET, STRICT, DECAY_INPUT)
        ahead = gradient_at(g_out_ptr, first + (STEPS - 1), g_out_stride, T, offsets, mask, compute, RAGGED)
        for k in tl.static_range(STEPS - 1, -1, -1):
            live = mask
            if RAGGED:
                live = within(mask, first + k, T)
            g = ahead
            # Loaded before this step's store, which would delay it.
            if k > 0:
                ahead = gradient_at(g_out_ptr, first + (k - 1), g_out_stride, T, offsets, mask, compute, RAGGED)
            g_m = gradient_at(g_m_ptr, first + k, g_m_stride, T, offsets, mask, compute, RAGGED)
            x = xs[k].to(compute)
            before = us[k]
            extra = None
            if extra_ptr is not None:
                extra = extras[k].to(compute)
            i_k = current(x, extra, scale, shift, extra_scale)
            m = charge(i_k, before, a, DECAY_INPUT)
            s = fire(m, v, STRICT)
            dm, dv_step = step_gradient(
                g, g_m, du, m, s, v, inverse_v, edge, slope, height, FAMILY, SURROGATE, RESET, DETACH
            )
            if DECAY_INPUT:
                da_step = dm * (i_k - before)
                di = a * dm
            else:
                da_step = -dm * before
                di = dm
            dx = di
            if scale_ptr is not None:
                dx = scale * di
                # Steps past the end have no gradient.
                own = tl.where(live, di, 0.0)
                dshift += own
                dscale += own * x
                if extra_scale_ptr is not None:
                    dextra_scale += own * extra
            tl.store(dx_ptr + (first + k) * step + offsets, dx.to(dx_ptr.dtype.element_ty), mask=live)
            if dextra_ptr is not None:
                dextra = di
                if extra_scale_ptr is not None:
                    dextra = extra_scale * di
                tl.store(dextra_ptr + (first + k) * step + offsets, dextra.to(dextra_ptr.dtype.element_ty), mask=live)
            if RAGGED:
                dv += tl.where(live, dv_step, 0.0)
                da += tl.where(live, da_step, 0.0)
                du = tl.where(live, (1 - a) * dm, du)
            else:
                dv += dv_step
                da += da_step
                du = (1 - a) * dm
    size = slots * channels
    store_partial(partial_ptr, dv, mask, c, channels, row, slots, BLOCK_C, BLOCK)
    store_partial(partial_ptr + size, da, mask, c, channels, row, slots, BLOCK_C, BLOCK)
    if U0_KIND == 2:
        tl.store(du0_ptr + offsets, du, mask=mask)
    else:
        store_partial(partial_ptr + 2 * size, du, mask, c, channels, row, slots, BLOCK_C, BLOCK)
    if scale_ptr is not None:
        store_partial(partial_ptr + 3 * size, dshift, mask, c, channels, row, slots, BLOCK_C, BLOCK)
        store_partial(partial_ptr + 4 * size, dscale, mask, c, channels, row, slots, BLOCK_C, BLOCK)
    if extra_scale_ptr is not None:
        store_partial(partial_ptr + 5 * size, dextra_scale, mask, c, channels, row, slots, BLOCK_C, BLOCK)

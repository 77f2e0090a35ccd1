# mypy: allow-untyped-defs, allow-incomplete-defs
# Triton reads the annotations of a Triton function, so only those that it supports are used.
"""The forward Triton kernel: reads x once, writes spikes and, if requested, U[T] and M; reduces MP-Init's statistics.

With a scale and a shift per channel (those of a norm) the input current is computed from x on the way, with an optional
``extra`` (a shortcut, or the input of its norm), and is never in memory.
"""

import triton
import triton.language as tl

from steadyspike.kernels.scan.triton.math import (
    after_reset,
    by_channel,
    charge,
    current,
    fire,
    initial,
    store_partial,
    tile,
    within,
)


@triton.jit(do_not_specialize=["size_class"])
def forward_kernel(
    x_ptr,
    u0_ptr,
    v_ptr,
    a_ptr,
    scale_ptr,
    shift_ptr,
    extra_ptr,
    extra_scale_ptr,
    out_ptr,
    u_ptr,
    m_ptr,
    partial_ptr,
    T,
    x_stride: tl.int64,
    extra_stride: tl.int64,
    step: tl.int64,
    per_channel,
    channels,
    inner,
    slots,
    size_class,
    SCALED: tl.constexpr,
    RESET: tl.constexpr,
    STRICT: tl.constexpr,
    DECAY_INPUT: tl.constexpr,
    U0_KIND: tl.constexpr,
    V_PER_CHANNEL: tl.constexpr,
    A_PER_CHANNEL: tl.constexpr,
    SCALE_PER_STEP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Runs one tile through all T steps.

    partial_ptr [2, slots, channels]: sum of U[T] over active neurons, and their number

    ``x_stride``, ``extra_stride`` and ``step`` are the time strides of x, of extra and of everything written. u_ptr,
    m_ptr and all that describes the current may be None. ``SCALE_PER_STEP``: scale and shift are [T, C].
    """
    offsets, mask, c, row = tile(per_channel, channels, inner, WIDE, BLOCK_C, BLOCK)
    v = by_channel(v_ptr, c, channels, V_PER_CHANNEL)
    a = by_channel(a_ptr, c, channels, A_PER_CHANNEL)
    u = initial(u0_ptr, offsets, mask, c, channels, U0_KIND)
    ever = tl.zeros(offsets.shape, tl.int1)
    scale = None
    shift = None
    extra_scale = None
    if scale_ptr is not None:
        scale = by_channel(scale_ptr, c, channels, True)
        shift = by_channel(shift_ptr, c, channels, True)
    if extra_scale_ptr is not None:
        extra_scale = by_channel(extra_scale_ptr, c, channels, True)
    ahead = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    extra_ahead = ahead
    if extra_ptr is not None:
        extra_ahead = tl.load(extra_ptr + offsets, mask=mask, other=0.0)
    for t in range(T):
        x = ahead.to(u.dtype)
        extra = extra_ahead.to(u.dtype) if extra_ptr is not None else None
        # The next step is loaded while this one is computed, because the stores below would otherwise delay its load.
        live = within(mask, t + 1, T)
        ahead = tl.load(x_ptr + (t + 1) * x_stride + offsets, mask=live, other=0.0)
        if extra_ptr is not None:
            extra_ahead = tl.load(extra_ptr + (t + 1) * extra_stride + offsets, mask=live, other=0.0)
        if SCALE_PER_STEP:
            scale = by_channel(scale_ptr + t * channels, c, channels, True)
            shift = by_channel(shift_ptr + t * channels, c, channels, True)
        m = charge(current(x, extra, scale, shift, extra_scale), u, a, DECAY_INPUT)
        s = fire(m, v, STRICT)
        u = after_reset(m, s, v, RESET)
        ever = ever | (s > 0)
        if SCALED:
            out = v * s
        else:
            out = s
        tl.store(out_ptr + t * step + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
        if m_ptr is not None:
            tl.store(m_ptr + t * step + offsets, m, mask=mask)
    if u_ptr is not None:
        tl.store(u_ptr + offsets, u, mask=mask)
    store_partial(partial_ptr, u, mask & ever, c, channels, row, slots, BLOCK_C, BLOCK)
    counts = partial_ptr + slots * channels
    store_partial(counts, ever.to(tl.float32), mask, c, channels, row, slots, BLOCK_C, BLOCK)

# mypy: allow-untyped-defs, allow-incomplete-defs
# Annotations of a Triton function are read by Triton, so these carry only the ones it knows.
"""The forward Triton kernel: reads x once, writes spikes, U[T] and, if requested, M; reduces MP-Init's statistics."""

import triton
import triton.language as tl

from steadyspike.kernels.scan.triton.math import (
    after_reset,
    by_channel,
    charge,
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
    out_ptr,
    u_ptr,
    m_ptr,
    partial_ptr,
    T,
    x_stride: tl.int64,
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
    WIDE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tile through all T steps. partial_ptr [2, slots, channels]: sum of U[T] over active neurons, their number.

    ``x_stride`` and ``step`` are the time strides of x and of everything written; m_ptr may be None.
    """
    offsets, mask, c, row = tile(per_channel, channels, inner, WIDE, BLOCK_C, BLOCK)
    v = by_channel(v_ptr, c, channels, V_PER_CHANNEL)
    a = by_channel(a_ptr, c, channels, A_PER_CHANNEL)
    u = initial(u0_ptr, offsets, mask, c, channels, U0_KIND)
    ever = tl.zeros(offsets.shape, tl.int1)
    ahead = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    for t in range(T):
        x = ahead.to(u.dtype)
        # The next step is on its way while this one is computed: the stores below would otherwise hold its load back.
        ahead = tl.load(x_ptr + (t + 1) * x_stride + offsets, mask=within(mask, t + 1, T), other=0.0)
        m = charge(x, u, a, DECAY_INPUT)
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
    tl.store(u_ptr + offsets, u, mask=mask)
    store_partial(partial_ptr, u, mask & ever, c, channels, row, slots, BLOCK_C, BLOCK)
    counts = partial_ptr + slots * channels
    store_partial(counts, ever.to(tl.float32), mask, c, channels, row, slots, BLOCK_C, BLOCK)

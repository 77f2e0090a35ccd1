# mypy: allow-untyped-defs, allow-incomplete-defs
# Triton reads the annotations of a Triton function, so only those that it supports are used.
"""The common parts of the forward and the backward Triton kernel: tiles, one LIF step, surrogates, partial sums.

A step x[t] is one dense block of memory, treated as [outer, channels, inner]; for layer-wise parameters it is [N, 1,
1]. A program owns a tile of ``BLOCK // BLOCK_C`` positions (outer and inner together, "k") by ``BLOCK_C`` channels. It
keeps the tile through all time steps, so the only memory traffic is the tensors themselves.
"""

import triton
import triton.language as tl

# A partial sum is stored for this many elements, whatever block size the tuner chooses, so that the buffer's size is
# fixed before the launch.
SLOT = tl.constexpr(256)


@triton.jit
def tile(per_channel, channels, inner, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr):
    """(offsets and mask [BLOCK // BLOCK_C, BLOCK_C] within a step, channels [1, BLOCK_C], index of the k block)."""
    row, c = tile_position(channels, WIDE, BLOCK_C)
    offsets, mask = tile_at(row, c, per_channel, channels, inner, BLOCK_C, BLOCK)
    return offsets, mask, c, row


@triton.jit
def tile_position(channels, WIDE: tl.constexpr, BLOCK_C: tl.constexpr):
    """Returns (index of the program's k block, its channels [1, BLOCK_C])."""
    column_blocks = tl.cdiv(channels, BLOCK_C)
    column = tl.program_id(0) % column_blocks
    row = tl.program_id(0) // column_blocks
    c = column * BLOCK_C + tl.arange(0, BLOCK_C)
    if WIDE:
        row = row.to(tl.int64)
        c = c.to(tl.int64)
    return row, c[None, :]


@triton.jit
def tile_at(row, c, per_channel, channels, inner, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr):
    """Returns (offsets, mask) of the k block ``row`` of the channels ``c``."""
    k = row * (BLOCK // BLOCK_C) + tl.arange(0, BLOCK // BLOCK_C)
    k = k[:, None]
    # If inner == 1, Triton removes the division and recognises that the offsets are consecutive.
    offsets = (k // inner) * (channels * inner) + k % inner + c * inner
    return offsets, (k < per_channel) & (c < channels)


@triton.jit
def within(mask, t, T):
    """Returns ``mask`` if step t exists, otherwise an empty mask.

    (Not ``mask & (t < T)``: Triton's interpreter widens that to int32.)
    """
    return tl.where(t < T, mask, False)


@triton.jit
def by_channel(ptr, c, channels, PER_CHANNEL: tl.constexpr):
    """Returns a [1] or [C] parameter as [1, BLOCK_C]; lanes after the last channel read 1, which divides safely."""
    if PER_CHANNEL:
        return tl.load(ptr + c, mask=c < channels, other=1.0)
    else:
        return tl.load(ptr + c * 0)


@triton.jit
def initial(ptr, offsets, mask, c, channels, KIND: tl.constexpr):
    """Returns u0 over the tile: KIND 0 scalar, 1 per channel, 2 per element."""
    if KIND == 2:
        return tl.load(ptr + offsets, mask=mask, other=0.0)
    else:
        shape: tl.constexpr = offsets.shape
        return tl.broadcast_to(by_channel(ptr, c, channels, KIND == 1), shape)


@triton.jit
def current(x, extra, scale, shift, extra_scale):
    """Returns I = scale x + shift [+ extra, or extra_scale extra]; without a scale x itself.

    Parts that are absent are None.

    It is written as fused multiply-adds, for the reason given at `charge`."""
    if scale is None:
        return x
    else:
        i = tl.fma(x, scale, shift)
        if extra is not None:
            if extra_scale is None:
                i = i + extra
            else:
                i = tl.fma(extra, extra_scale, i)
        return i


@triton.jit
def charge(x, u, a, DECAY_INPUT: tl.constexpr):
    """M = (1 - a) U + a I.

    The fused multiply-add is explicit. If the compiler chose, forward and backward could round differently, and a
    backward that recomputes M would then get other spikes than the forward.
    """
    if DECAY_INPUT:
        return tl.fma(1 - a, u, a * x)
    else:
        return tl.fma(1 - a, u, x)


@triton.jit
def fire(m, v, STRICT: tl.constexpr):
    """Returns S in {0, 1}, or NaN if M is NaN."""
    if STRICT:
        fired = m > v
    else:
        fired = m >= v
    return tl.where(m != m, m, fired.to(m.dtype))


@triton.jit
def after_reset(m, s, v, RESET: tl.constexpr):
    """Returns U from M and S: RESET 0 soft, 1 hard, 2 none."""
    if RESET == 0:
        return m - v * s
    elif RESET == 1:
        return m * (1 - s)
    else:
        return m


@triton.jit
def advance(x, u, v, a, RESET: tl.constexpr, STRICT: tl.constexpr, DECAY_INPUT: tl.constexpr):
    """Returns U after one step with input x."""
    m = charge(x, u, a, DECAY_INPUT)
    return after_reset(m, fire(m, v, STRICT), v, RESET)


@triton.jit
def store_partial(ptr, values, mask, c, channels, row, slots, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr):
    """Sums ``values`` over the tile's positions into ptr [slots, channels], in double.

    A program of a larger block owns several slots: it writes its sum into the first and zeros into the others.
    """
    total = tl.sum(tl.where(mask, values, 0.0).to(tl.float64), axis=0)[None, :]
    own = tl.arange(0, BLOCK // SLOT)[:, None]
    slot = row * (BLOCK // SLOT) + own
    tl.store(ptr + slot * channels + c, tl.where(own == 0, total, 0.0), mask=(slot < slots) & (c < channels))

"""Spiking self-attention on concatenated channels_last q, k, v, without a copy of any of them.

In this format q, k and v of all tokens are the rows of one matrix, [B, N, 3 C]. ``scale * q (k^T v)`` of each head is
computed from slices of this matrix. Several narrow heads share one product, whose blocks off the diagonal are set to 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from steadyspike.kernels.sizes_only import has_no_values

WIDEST = 48  # the number of columns of one product: wider products take longer than the calls that they save


def heads_per_slice(heads: int, channels: int) -> int:
    """Returns how many heads share a product: as many as fit into `WIDEST` columns and divide the heads equally."""
    return max(n for n in range(1, heads + 1) if heads % n == 0 and (n == 1 or n * channels <= WIDEST))


def _new_blocks(heads: int, channels: int, scale: float, dtype: torch.dtype) -> Tensor:
    """Returns the mask and scale of a product k^T v of several heads."""
    with torch.inference_mode(False):
        block = torch.full((channels, channels) if heads > 1 else (1, 1), scale, dtype=dtype, device="cpu")
        return torch.block_diag(*[block] * heads)


_kept_blocks = lru_cache(maxsize=64)(_new_blocks)


class _Rows(torch.autograd.Function):
    """Returns [B, N, C] from qkv [B, N, 3 C]; can be differentiated any number of times."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, inner: float) -> Tensor:
        ctx.heads, ctx.inner = heads, inner
        products = _products(qkv, heads, inner)
        ctx.save_for_backward(qkv, *products)
        parts = [torch.bmm(q, m) for (q, _, _), m in zip(_slices(qkv, heads), products)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        qkv, *products = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: the saved products do not keep qkv alive
            products = _products(qkv, ctx.heads, ctx.inner)
        blocks = _blocks_of(qkv, ctx.heads, ctx.inner)
        dq, dk, dv = [], [], []
        width = products[0].shape[-1]
        for (q, k, v), m, part in zip(_slices(qkv, ctx.heads), products, g.split(width, 2)):
            dq.append(torch.bmm(part, m.mT))
            # d(q m) = g: dq = g m^T, dm = q^T g; then m = k^T v gives dk = v dm^T and dv = k dm.
            dm = torch.bmm(q.mT, part)
            dm = dm if blocks is None else dm * blocks
            dk.append(torch.bmm(v, dm.mT))
            dv.append(torch.bmm(k, dm))
        return torch.cat([*dq, *dk, *dv], 2), None, None


def _blocks_of(qkv: Tensor, heads: int, inner: float) -> Tensor | None:
    """Returns `_new_blocks` for one slice; None if it would be 1 everywhere."""
    channels = qkv.shape[2] // 3 // heads
    together = heads_per_slice(heads, channels)
    if together == 1 and inner == 1:
        return None
    # A memory estimate makes tensors without values, which must not be cached for other calls.
    make = _new_blocks if has_no_values(qkv) else _kept_blocks
    return make(together, channels, inner, qkv.dtype)


def _slices(qkv: Tensor, heads: int) -> list[tuple[Tensor, ...]]:
    """Returns (q, k, v) [B, N, columns] of each slice."""
    channels = qkv.shape[2] // 3
    width = heads_per_slice(heads, channels // heads) * (channels // heads)
    return list(zip(*(part.split(width, 2) for part in qkv.split(channels, 2))))


def _products(qkv: Tensor, heads: int, inner: float) -> list[Tensor]:
    """Returns k^T v of each slice, [B, columns, columns], with 0 between different heads."""
    blocks, products = _blocks_of(qkv, heads, inner), []
    for _, k, v in _slices(qkv, heads):
        m = torch.bmm(k.mT, v)
        products.append(m if blocks is None else m * blocks)
    return products


def rows_attention(qkv: Tensor, heads: int, scale: float) -> Tensor:
    """Returns ``scale * q (k^T v)`` per head, [B, N, C], for q, k and v concatenated in the rows of qkv [B, N, 3 C].

    A scale that is a power of 2 is multiplied into k^T v, which causes no rounding. Any other scale is applied last, so
    that products of binary spikes stay whole numbers until then.
    """
    # frexp gives a mantissa of 0.5 for powers of 2 only.
    exact = scale > 0 and math.frexp(scale)[0] == 0.5
    out: Tensor = _Rows.apply(qkv, heads, scale if exact else 1.0)
    return out if exact else out * scale

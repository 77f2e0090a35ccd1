"""Spiking self-attention without softmax, ``scale * v (k^T q)``, computed in the cheaper of its two orders.

q, k and v are [..., d, N]: d channels of a head, N tokens. Without a softmax the product is associative. For binary
spikes both orders give exactly the same whole numbers (below 2^24 in float32); for V*S (TrSG) they differ by rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

ORDERS = ("auto", "vk", "kq")


def heads_of(x: Tensor, heads: int) -> Tensor:
    """Reshapes [T, B, C, H, W] to [T, B, heads, C / heads, H W]; a view of a contiguous or channels_last tensor."""
    return x.flatten(3).unflatten(2, (heads, -1))


def image_of(tokens: Tensor, like: Tensor) -> Tensor:
    """Reshapes [T, B, heads, d, N] to [T, B, C, H, W], with the memory layout of ``like``."""
    return laid_out_as(tokens.flatten(2, 3).unflatten(3, tuple(like.shape[-2:])), like)


def laid_out_as(x: Tensor, like: Tensor) -> Tensor:
    """Returns ``x`` [T, B, ...] in channels_last format if ``like`` has it, so that later layers need not copy."""
    if like.stride(2) == 1 and like.shape[2] > 1 and like.shape[-2] * like.shape[-1] > 1:
        return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, tuple(x.shape[:2]))
    return x


def cheaper_order(channels: int, tokens: int) -> str:
    """The order with fewer operations: ``"vk"``, (v k^T) q, takes 4 d^2 N; ``"kq"``, v (k^T q), takes 4 d N^2."""
    return "vk" if channels <= tokens else "kq"


def spike_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, order: str = "auto") -> Tensor:
    """``scale * v (k^T q)`` for q, k, v [..., d, N] -> [..., d, N]."""
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; known: {', '.join(ORDERS)}")
    if order == "auto":
        order = cheaper_order(q.shape[-2], q.shape[-1])
    product = (v @ k.mT) @ q if order == "vk" else v @ (k.mT @ q)
    return product if scale == 1 else product * scale

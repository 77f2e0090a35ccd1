"""The memory layout of tensors: the dense steps that every kernel reads and writes.

Tensors are [T, B, C, ...]. A step x[t] is dense if its elements fill one block of memory; the time stride is free.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# The number of shapes for which results are cached: more than a network has, even with ten image sizes; 2 MB.
KEPT_SHAPES = 512
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Returns float64 for float64 input, float32 for everything narrower."""
    return torch.promote_types(x.dtype, torch.float32)


def channel_count(x: Tensor) -> int:
    """C of x [T, B, C, ...]; 1 for x [T, B]."""
    return x.shape[2] if x.ndim > 2 else 1


def is_dense(step: Tensor) -> bool:
    """Returns True if the elements of ``step`` fill one block of memory, each exactly once."""
    return _fills_a_block(step.shape, step.stride())


def _fills_a_block(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(strides, shape) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


@lru_cache(maxsize=KEPT_SHAPES)
def are_dense_steps(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """Computes `has_dense_steps` for an x with this shape and these strides."""
    return _fills_a_block(shape[1:], strides[1:])


@lru_cache(maxsize=KEPT_SHAPES)
def _fills_one_block(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    return are_dense_steps(shape, strides) and strides[0] == shape[1:].numel()


def fills_one_block(x: Tensor) -> bool:
    """Returns True if x [T, ...] has dense steps that follow each other in memory; outside of compilers."""
    return _fills_one_block(x.shape, x.stride())


def has_dense_steps(x: Tensor) -> bool:
    """Computes `is_dense` of x[0].

    It is cached, for calls outside of compilers: a layer has few shapes, which repeat.
    """
    return are_dense_steps(x.shape, x.stride())


def same_strides(t: Tensor, like: Tensor) -> bool:
    """Returns True if ``t`` and ``like`` have the same shape and memory order."""
    return t.shape == like.shape and _agree(t.stride(), like.stride(), t.shape)


def same_strides_of_steps(t: Tensor, like: Tensor) -> bool:
    """Computes `same_strides` of t[0] and like[0], also for tensors without memory, of which no part can be taken."""
    return t.shape[1:] == like.shape[1:] and _agree(t.stride()[1:], like.stride()[1:], t.shape[1:])


def _agree(strides: tuple[int, ...], others: tuple[int, ...], shape: torch.Size) -> bool:
    return all(s == r or n == 1 for s, r, n in zip(strides, others, shape))


def empty_steps(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocates a [T, B, ...] tensor, each step with the memory layout of ``x[0]``, time outermost."""
    step = x[0]
    return torch.empty_strided(x.shape, (step.numel(), *torch.empty_like(step).stride()), dtype=dtype, device=x.device)


def dense_steps(x: Tensor) -> Tensor:
    """Returns ``x`` with every x[t] dense; it is copied only if it is not. For use outside of compilers."""
    return x if x.numel() == 0 or has_dense_steps(x) else empty_steps(x, x.dtype).copy_(x)


def laid_out_like(g: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the gradient ``g`` [T, B, ...] in ``dtype`` with the inner strides of ``x[0]``.

    It is copied only if it differs.
    """
    if g.shape != x.shape:
        raise ValueError(f"the gradient must have x's shape {list(x.shape)}, got {list(g.shape)}")
    if g.device != x.device:
        raise ValueError(f"the gradient is on {g.device} but x is on {x.device}; move one of them")
    if g.dtype == dtype and same_strides_of_steps(g, x):
        return g
    return x.new_empty_strided(x.shape, (x.shape[1:].numel(), *x.stride()[1:]), dtype=dtype).copy_(g)


def like_step(u0: Tensor, x: Tensor) -> Tensor:
    """Returns a ``u0`` per element, broadcast to x.shape[1:] in the memory order of a dense x[0]; differentiable."""
    like = torch.empty_like(x[0], dtype=u0.dtype)
    return u0 if same_strides(u0, like) else like.copy_(u0)

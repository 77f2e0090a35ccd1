"""Activation checkpointing: the blocks of a network's body keep their input only and run again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from steadyspike.models import SpikingNet
from steadyspike.nn.checkpoint import checkpoint


def _recomputed(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(x)
    return checkpoint(forward, x)


def recompute_blocks(model: SpikingNet) -> int:
    """Wraps every block of the body in place, without renaming a parameter; returns how many there are.

    Statistics (norms, MP-Init) are updated once per step: they recognise a recomputation.
    """
    blocks = list(model.body.children())
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)
    return len(blocks)

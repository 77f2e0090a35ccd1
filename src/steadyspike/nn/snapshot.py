"""`snapshot`: copies a tensor in a way that torch.compile cannot optimise away.

A compiled training step may save a buffer for its backward pass by reference, and write the buffer's new value before
the backward runs. Gradients then silently use the wrong value. The compiler cannot look into a custom operator, so a
copy made by one keeps the value that the forward used. The operator also raises an error if activation checkpointing
recomputes a compiled graph, because the old value no longer exists then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.core.torch_private import backward_task, dispatch_modes
from steadyspike.kernels.eager import runs_directly


def snapshot(x: Tensor) -> Tensor:
    """Returns a copy of ``x`` (no gradient)."""
    if torch.compiler.is_compiling() or (dispatch_modes() and not runs_directly(x)):
        return _snapshot(x)
    return x.detach().clone() if x.requires_grad else x.clone()


@torch.library.custom_op("steadyspike::snapshot", mutates_args=())
def _snapshot(x: Tensor) -> Tensor:
    if backward_task() != -1:
        raise RuntimeError(
            "activation checkpointing recomputes a compiled layer whose running statistics have changed since; "
            "use torch.compile without torch.utils.checkpoint, or checkpointing without torch.compile"
        )
    return x.clone()


@_snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)

"""Tells ordinary eager calls from those that a compiler, a transform or a mode has to see.

Calling an operator through torch.library costs more than a small layer's arithmetic. An ordinary call may run the
implementation directly; everywhere else (torch.compile, export, fake tensors, torch.func, dispatch modes) the call must
go through the operator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import (
    dispatch_modes,
    function_modes,
    in_forward_mode,
    in_function_transform,
    is_batched_gradient,
)

_PLAIN = (Tensor, nn.Parameter)


def is_ordinary(*tensors: Tensor) -> bool:
    """True outside of every compiler, transform and mode, for tensors that are nothing but tensors."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if dispatch_modes() or function_modes() or in_function_transform() or in_forward_mode():
        return False
    # Plain: the memory holds the values. No subclass, not one of a batch of gradients, no pending sign. A loop: this
    # runs several times per layer, and a generator or a function would take as long as the questions.
    for t in tensors:  # noqa: SIM110
        if type(t) not in _PLAIN or t.is_neg() or is_batched_gradient(t):
            return False
    return True

"""Tells ordinary eager calls from those that a compiler, a transform or a mode has to see.

Calling an operator through torch.library costs more than a small layer's arithmetic. An ordinary call may run the
implementation directly; everywhere else (torch.compile, export, fake tensors, torch.func, dispatch modes) the call must
go through the operator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import dispatch_modes, function_modes, is_batched_gradient
from steadyspike.core.transforms import is_transformed

_PLAIN = (Tensor, nn.Parameter)


def is_ordinary(*tensors: Tensor) -> bool:
    """True outside of every compiler, transform and mode, for tensors that are nothing but tensors."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or dispatch_modes()
        or function_modes()
        or is_transformed()
        or not all(_is_plain(t) for t in tensors)
    )


def _is_plain(t: Tensor) -> bool:
    """True if the tensor's memory holds its values: no subclass, not one of a batch of gradients, no pending sign."""
    return type(t) in _PLAIN and not (t.is_neg() or is_batched_gradient(t))

"""Is this an ordinary call, that nobody traces, transforms or watches?

An operator's dispatch through torch.library costs more than a small layer's arithmetic. Where a call is ordinary, its
implementation may be called directly; everywhere else (torch.compile, export, fake tensors, torch.func, dispatch modes)
the operator must be seen.
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

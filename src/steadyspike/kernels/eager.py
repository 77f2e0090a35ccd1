"""Distinguishes ordinary eager calls from those that a compiler, a transform or a mode must record.

Calling an operator through torch.library costs more than a small layer's arithmetic. An ordinary call may run the
implementation directly. In all other cases (torch.compile, export, fake tensors, torch.func, dispatch modes) the call
must go through the operator. Modes that only count memory need only the tensors that an implementation allocates, so a
call inside them is ordinary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import (
    active_dispatch_modes,
    dispatch_modes,
    function_modes,
    in_forward_mode,
    in_function_transform,
    is_batched_gradient,
    is_tracing,
)
from steadyspike.kernels.sizes_only import sizes_only

_PLAIN = (Tensor, nn.Parameter)
_is_compiling = torch.compiler.is_compiling


def is_ordinary(*tensors: Tensor) -> bool:
    """Returns True outside of every compiler, transform and mode, for plain tensors."""
    if _is_compiling():
        return False
    if dispatch_modes() and not all(getattr(mode, "only_counts", False) for mode in active_dispatch_modes()):
        return False
    return _are_plain(tensors)


def runs_directly(*tensors: Tensor) -> bool:
    """Like `is_ordinary`, but also True for the tensors of a memory estimate.

    For code that makes tensors but reads no value.
    """
    if _is_compiling():  # checked first: a compiler cannot trace the checks below
        return False
    if dispatch_modes():
        return is_ordinary(*(t for t in tensors if sizes_only(t) is None))
    return _are_plain(tensors)


def _are_plain(tensors: tuple[Tensor, ...]) -> bool:
    """Returns True outside of transforms, for tensors whose memory holds their values.

    This excludes subclasses, batches of gradients and lazy negation.
    """
    if is_tracing() or function_modes() or in_function_transform() or in_forward_mode():
        return False
    # A loop, because this runs several times per layer, and a generator or a function would take as long as the checks.
    for t in tensors:  # noqa: SIM110
        if type(t) not in _PLAIN or t.is_neg() or is_batched_gradient(t):
            return False
    return True

"""Finds out whether torch.func or forward-mode differentiation is active."""

from __future__ import annotations

import torch

from steadyspike.core.torch_private import in_forward_mode, in_function_transform


def is_transformed() -> bool:
    """Returns True inside torch.func's transforms and forward-mode differentiation.

    It is always False under torch.compile.
    """
    if torch.compiler.is_compiling():
        return False
    return in_function_transform() or in_forward_mode()

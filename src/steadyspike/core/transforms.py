"""Tells whether torch.func or forward-mode differentiation is at work."""

from __future__ import annotations

import torch

from steadyspike.core.torch_private import in_forward_mode, in_function_transform


def is_transformed() -> bool:
    """True inside of torch.func's transforms and of forward-mode differentiation; a compiler never sees it."""
    if torch.compiler.is_compiling():
        return False
    return in_function_transform() or in_forward_mode()

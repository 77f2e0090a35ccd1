"""Is a derivative being taken in another way than by a backward pass?"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """True inside of torch.func's transforms and of forward-mode differentiation; a compiler never sees it."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0

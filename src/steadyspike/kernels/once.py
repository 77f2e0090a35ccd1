"""Gradients that refuse to be differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steadyspike.core.torch_private import raising_identity


def once(grads: Sequence[Tensor], reason: str, *sources: Tensor | None) -> Sequence[Tensor]:
    """``grads``, which raise ``reason`` if they are differentiated for any of the tensors they come from.

    torch's `once_differentiable` looks at the incoming gradients alone, and says nothing where these are constants.
    """
    if not torch.is_grad_enabled():
        return grads
    linked = [t for t in sources if t is not None and t.requires_grad]
    refuse = raising_identity(reason, len(grads) + len(linked))
    return list(refuse(*grads, *linked))[: len(grads)]

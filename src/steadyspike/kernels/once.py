"""Gradients that refuse to be differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steadyspike.core.torch_private import raising_identity


def once(grads: Sequence[Tensor | None], reason: str, *sources: Tensor | None) -> Sequence[Tensor | None]:
    """``grads``, which raise ``reason`` if they are differentiated for any of the tensors they come from.

    torch's `once_differentiable` looks at the incoming gradients alone, and says nothing where these are constants.
    """
    if not torch.is_grad_enabled():
        return grads
    found = [g for g in grads if g is not None]
    linked = [t for t in sources if t is not None and t.requires_grad]
    refusing = iter(raising_identity(reason, len(found) + len(linked))(*found, *linked))
    return [None if g is None else next(refusing) for g in grads]

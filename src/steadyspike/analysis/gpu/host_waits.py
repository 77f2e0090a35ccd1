"""Detects what makes the host wait for a GPU inside a training step: values read from a tensor, copies to the CPU.

Each of them waits until the queue of kernels is empty, and a CUDA graph cannot contain them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations whose result, or whose size, the host needs before it can go on.
_READS = frozenset(
    ("_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
     "equal", "is_nonzero", "bincount", "repeat_interleave")
)  # fmt: skip
_COPIES = frozenset(("_to_copy", "copy_", "copy", "to"))
_INDEXES = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))


class HostWaits(TorchDispatchMode):
    """Records every operation that made the host wait, by name, in ``waits.seen``: ``with HostWaits() as waits``.

    A copy counts if it changes the device, and so does an index on another device; filling a tensor on the device from
    a Python number does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        indexes = given[1:] if name in _INDEXES else []
        if name in _READS or any(t.dtype == torch.bool or t.device != given[0].device for t in indexes):
            self.seen.append(name)
        out = func(*args, **(kwargs or {}))
        if name in _COPIES:
            devices = {t.device.type for t in (*given, *tree_leaves(out)) if isinstance(t, Tensor)}
            if len(devices) > 1:
                self.seen.append(f"{name} between {' and '.join(sorted(devices))}")
        return out

"""`MemoryTracker`: counts the bytes of tensors while code runs, and their peak.

It works on real tensors and on fake tensors, which have sizes but no memory; `memory_estimate` uses the latter.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from steadyspike.core.torch_private import TorchDispatchMode, storage_key, tree_leaves


class MemoryTracker(TorchDispatchMode):
    """A context that counts the storages allocated by operators: ``live`` and ``peak``, in bytes.

    Memory used inside an operator (the work space of a convolution) is not counted.
    """

    only_counts = True  # layers run as they would without it

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen: set[int] = set()

    def ignore(self, tensor: Tensor) -> None:
        """Marks ``tensor`` as already allocated, so that it is not counted."""
        self._follow(tensor, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._follow(leaf, leaf.untyped_storage().nbytes())
        return out

    def _follow(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        # Runs when the last tensor on this storage is deleted.
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size

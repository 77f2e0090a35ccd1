"""How much memory tensors take while code runs: live bytes and their peak, storage by storage.

Works on real tensors and on fake ones, which have sizes but no memory; that is how a training step is sized up without
being run.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from steadyspike.core.torch_private import TorchDispatchMode, storage_key, tree_leaves


class MemoryTracker(TorchDispatchMode):
    """While on, counts the storages that operators allocate; ``live`` and ``peak`` in bytes.

    Memory inside an operator (work space of a convolution) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen: set[int] = set()

    def known(self, tensor: Tensor) -> None:
        """``tensor`` is there already and does not count."""
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
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size

"""`SpikeSaver`: hooks on a model that make autograd keep spikes as bits.

While the model runs, the hooks remember the storage of every neuron's output. If an operator (such as a convolution)
saves a tensor with this storage for its backward, it is kept as `PackedSpikes`, those of the scan if it noted them;
operators that save the same spikes share the bits. All other tensors are kept as they are, with autograd's check for
changes in place.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from steadyspike.core.torch_private import FakeTensor, may_hook_saved_tensors, saved_tensor_hooks, storage_key, version
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.spikes.known import known_spikes, note_spikes
from steadyspike.kernels.spikes.packed import PackedSpikes, pack_spikes
from steadyspike.nn.neuron import Neuron

SMALLEST = 4096  # elements; packing smaller tensors is not worth the time


class _View(NamedTuple):
    """A saved tensor as a view into the block of ``bits``."""

    bits: PackedSpikes
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    noted: bool  # the spikes' storage has a note of its bits

    def tensor(self) -> Tensor:
        block = self.bits.block()
        if self.noted:  # a checkpoint that recomputes from this tensor must find what its forward found
            note_spikes(block, self.bits)
        return block.view(-1).as_strided(self.shape, self.stride, self.offset)


class _Kept(NamedTuple):
    """A saved tensor as it is, with its version: autograd does not check versions of tensors saved with hooks."""

    saved: Tensor
    version: int

    def tensor(self) -> Tensor:
        if version(self.saved) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.saved.dtype} {list(self.saved.shape)}] is at version {version(self.saved)}; expected version "
                f"{self.version} instead"
            )
        return self.saved


class _Spikes:
    """A neuron's output while the model runs: its place in memory, its level, and its bits once they are needed."""

    def __init__(self, out: Tensor, level: Tensor) -> None:
        # While the weak reference exists, no other storage can get the same address.
        self.storage = StorageWeakRef(out.untyped_storage())
        self.level = level.to(out.dtype).reshape(-1)
        self.shape, self.stride, self.offset = out.shape, out.stride(), int(out.storage_offset())
        self.version = version(out)
        self.bits: PackedSpikes | None = None
        self.noted = False

    def pack(self, saved: Tensor) -> PackedSpikes | None:
        """The bits of these spikes: the same object for every operator, unless the values have changed."""
        if version(saved) != self.version or self.storage.expired():
            return None
        out = saved.detach().as_strided(self.shape, self.stride, self.offset)
        known = known_spikes(out)
        self.noted = known is not None
        if isinstance(saved, FakeTensor):
            self.bits = self.bits or known or _fake_bits(out, self.level)
            return self.bits
        bits = known or pack_spikes(out, self.level)
        if bits is None or self.bits is None or not torch.equal(bits.words, self.bits.words):
            self.bits = bits
        return self.bits


def _fake_bits(out: Tensor, level: Tensor) -> PackedSpikes:
    """Bits of a tensor without values, for memory estimates, which assume that a spiking layer's output is spikes."""
    words = out.new_empty((out.shape[0], -(-out[0].numel() // 64)), dtype=torch.int64)
    return PackedSpikes(words, level, out.shape, out.stride())


class SpikeSaver:
    """The hooks: `enter` and `leave` on the model, `remember` on its neurons. It holds no tensors between forwards."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._local = threading.local()

    @property
    def _running(self) -> list[tuple[ExitStack, dict[int, _Spikes] | None]]:
        """For each running forward: its hooks, and the known spikes by storage (None if there are no hooks)."""
        if not hasattr(self._local, "running"):
            self._local.running = []
        return self._local.running

    def enter(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack, known = ExitStack(), None
        if torch.is_grad_enabled() and not (torch.jit.is_tracing() or is_transformed()) and _hooks_are_free():
            known = dict[int, _Spikes]()
            stack.enter_context(saved_tensors_hooks(_Pack(known), _unpack))
        self._running.append((stack, known))

    def leave(self, model: nn.Module, args: Any, out: Any) -> None:
        # Also called if a hook before `enter` raised an error; then `enter` was never called.
        if not torch.compiler.is_compiling() and self._running:
            stack, known = self._running.pop()
            stack.close()
            # Autograd keeps the hooks as long as the tensors they packed; without this they would keep all spikes.
            if known is not None:
                known.clear()

    @torch.no_grad()
    def remember(self, neuron: Neuron, args: Any, out: Tensor) -> None:
        if torch.compiler.is_compiling() or not self._running:
            return
        known = self._running[-1][1]
        if known is None or out.numel() < SMALLEST or out.is_inference():
            return
        level = neuron.threshold if neuron.spec.family == "trsg" else out.new_ones(1)
        known[storage_key(out)] = _Spikes(out, level)

    remember.only_output = True  # type: ignore[attr-defined]  # for norm_neuron: it does not look at the layer's input


def _hooks_are_free() -> bool:
    """False if torch forbids hooks (torch.func) or others are active (checkpointing around the model saves nothing)."""
    return may_hook_saved_tensors() and saved_tensor_hooks() is None


class _Pack:
    """The pack hook: autograd calls it with every tensor that it saves."""

    recomputes = False  # unlike the hooks of a checkpoint

    def __init__(self, known: dict[int, _Spikes]) -> None:
        self.known = known

    def __call__(self, tensor: Tensor) -> _Kept | _View:
        spikes = self.known.get(storage_key(tensor)) if self.known else None
        bits = spikes.pack(tensor) if spikes is not None else None
        if spikes is None or bits is None:
            # Detached, because an operator's output refers to the operator, which would keep it: a cycle.
            return _Kept(tensor if tensor.grad_fn is None else tensor.detach(), version(tensor))
        return _View(bits, tensor.shape, tensor.stride(), int(tensor.storage_offset()) - spikes.offset, spikes.noted)


def _unpack(saved: _Kept | _View) -> Tensor:
    return saved.tensor()

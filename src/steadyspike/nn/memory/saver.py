"""Hooks on a model by which autograd keeps spikes as bits.

While the model runs, every neuron's output is remembered by its storage; what a convolution (or anything else) then
saves of that storage for its backward becomes `PackedSpikes`, made once for all that save it, and checked value by
value.
Everything else is kept as it is, with autograd's own check that nobody changed it in place.
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
from steadyspike.kernels.spikes.packed import PackedSpikes, pack_spikes
from steadyspike.nn.neuron import Neuron

SMALLEST = 4096  # elements; below, bits would cost more time than they save memory


class _View(NamedTuple):
    """A saved tensor: where its elements lie in the block of ``bits``."""

    bits: PackedSpikes
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return self.bits.block().view(-1).as_strided(self.shape, self.stride, self.offset)


class _Kept(NamedTuple):
    """A saved tensor as it is; autograd checks versions only of what it saves without hooks."""

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
    """A neuron's output while the model runs: its place in memory, its level, and its bits once somebody saves it."""

    def __init__(self, out: Tensor, level: Tensor) -> None:
        # The weak reference keeps the storage's address from being given to another one.
        self.storage = StorageWeakRef(out.untyped_storage())
        self.level = level.to(out.dtype).reshape(-1)
        self.shape, self.stride, self.offset = out.shape, out.stride(), int(out.storage_offset())
        self.version = version(out)
        self.bits: PackedSpikes | None = None

    def pack(self, saved: Tensor) -> PackedSpikes | None:
        """The bits, the same object for all who save what did not change in between, even past autograd (``.data``)."""
        if version(saved) != self.version or self.storage.expired():
            return None
        out = saved.detach().as_strided(self.shape, self.stride, self.offset)
        if isinstance(saved, FakeTensor):
            self.bits = self.bits or _fake_bits(out, self.level)
            return self.bits
        bits = pack_spikes(out, self.level)
        if bits is None or self.bits is None or not torch.equal(bits.words, self.bits.words):
            self.bits = bits
        return self.bits


def _fake_bits(out: Tensor, level: Tensor) -> PackedSpikes:
    """Bits of a tensor without values, for estimates: what a spiking layer gives is taken to be spikes."""
    words = out.new_empty((out.shape[0], -(-out[0].numel() // 64)), dtype=torch.int64)
    return PackedSpikes(words, level, out.shape, out.stride())


class SpikeSaver:
    """The hooks: `enter` and `leave` on the model, `remember` on its neurons. Holds nothing between two forwards."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._local = threading.local()

    @property
    def _running(self) -> list[tuple[ExitStack, dict[int, _Spikes] | None]]:
        """Per forward under way: the hooks, and what is known; None where there are no hooks."""
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
        # Also called if a hook before `enter` raised, hence nothing to leave.
        if not torch.compiler.is_compiling() and self._running:
            stack, known = self._running.pop()
            stack.close()
            # Autograd holds on to the hooks as long as to what they packed; they need not hold on to all of it.
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


def _hooks_are_free() -> bool:
    """False if nobody may hook (torch.func), or somebody does: checkpointing around the model saves nothing at all."""
    return may_hook_saved_tensors() and saved_tensor_hooks() is None


class _Pack:
    """What autograd calls with every tensor it is to save."""

    recomputes = False  # as a checkpoint's hooks would

    def __init__(self, known: dict[int, _Spikes]) -> None:
        self.known = known

    def __call__(self, tensor: Tensor) -> _Kept | _View:
        spikes = self.known.get(storage_key(tensor)) if self.known else None
        bits = spikes.pack(tensor) if spikes is not None else None
        if spikes is None or bits is None:
            # An operator's output would hold on to the operator that holds on to it.
            return _Kept(tensor if tensor.grad_fn is None else tensor.detach(), version(tensor))
        return _View(bits, tensor.shape, tensor.stride(), int(tensor.storage_offset()) - spikes.offset)


def _unpack(saved: _Kept | _View) -> Tensor:
    return saved.tensor()

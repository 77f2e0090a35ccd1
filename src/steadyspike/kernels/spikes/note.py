"""Notes of a scan about its output, for the layers that read it: spikes as bits, and where a gradient is needed.

The note is an attribute of the output's storage, so every view of the output has it, and it is freed with the output.
It is valid for a tensor on this storage that begins at the same address, if autograd has counted no in-place change
since (`_note_of`). Two uses need additional checks:

- The bits (`known_spikes`) must also match a sample of the values. This detects changes of the whole tensor that
  autograd does not register (``x.data``, numpy), but not the change of a single element.
- A scan ignores the gradient of its output at a neuron that did not fire and whose surrogate derivative is 0. A layer
  that reads the output directly, or through one view, may leave the gradient at such an element at 0 (`needed_places`).
  This is not allowed if the gradient in between is read by a hook, ``retain_grad()`` or ``torch.autograd.grad``; the
  backward checks `Watch.alone`.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from steadyspike.core.torch_private import base_of, gradient_hooks, runs_to_the_leaves, version
from steadyspike.kernels.layout import has_dense_steps
from steadyspike.kernels.sizes_only import has_no_values, sizes_only
from steadyspike.kernels.spikes.packed import PackedSpikes, elements_per_channel, pack_spikes
from steadyspike.kernels.spikes.words import can_pack, count_words, may_be

_NOTE = "steadyspike_note"
_VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})  # all elements, in their order


class _Note:
    """A scan's note.

    spikes: None if the output is not spikes of one level
    needed: bits as in `PackedSpikes.words`, 1 if the backward of ``node`` may use the gradient of the output; None:
        everywhere
    looks: made by the first reader
    """

    def __init__(self, out: Tensor, spikes: PackedSpikes | None, needed: Tensor | None, node: Any) -> None:
        self.spikes, self.needed = spikes, needed
        self.node = None if needed is None else weakref.ref(node)
        self.looks: _Looks | None = None
        self.version, self.address = _version(out), _address(out)


def note_spikes(out: Tensor, spikes: PackedSpikes | None, needed: Tensor | None = None, node: Any = None) -> None:
    """Stores a note on ``out`` [T, B, ...], time outermost.

    Only for steps of a whole number of words.

    node: the autograd node that made ``out``
    """
    if spikes is not None and spikes.size % 64:
        spikes = None
    if spikes is not None or needed is not None:
        setattr(out.untyped_storage(), _NOTE, _Note(out, spikes, needed, node))


def _note_of(x: Tensor) -> _Note | None:
    """The note on the storage of ``x`` if it is valid: the same address, and no in-place change that was counted."""
    note: _Note | None = getattr(x.untyped_storage(), _NOTE, None)
    if note is None or note.version != _version(x) or note.address != _address(x):
        return None
    return note


def _version(x: Tensor) -> int | None:
    """Returns None in inference mode, in which in-place changes are not counted."""
    return None if x.is_inference() else version(x)


def _address(x: Tensor) -> int:
    return int(x.storage_offset()) if has_no_values(x) else x.data_ptr()


def spikes_per_step(out: Tensor) -> Tensor:
    """Returns how many elements of each step of a scan's output [T, B, ...] are not 0, int64 [T].

    For code that gets the output from the scan itself, before it could have been changed (taps). The number that the
    scan has counted is then valid in inference mode too. An output without a note is counted here.
    """
    counts = counted_spikes(out)
    return out.detach().flatten(1).count_nonzero(1) if counts is None else counts


def counted_spikes(out: Tensor) -> Tensor | None:
    """Returns the scan's count of `spikes_per_step`; None if there is none, as for an output with NaN."""
    note = None if has_no_values(out) else _note_of(out)
    if note is None or note.spikes is None or note.spikes.shape != out.shape:
        return None
    return note.spikes.counts


def noted_steps(x: Tensor) -> int:
    """T if ``x`` [T * B, ...] is a scan's folded output [T, B, ...], each step a whole number of words; otherwise 1.

    Only the memory layout matters, not the values, so a later in-place change has no effect.
    """
    note: _Note | None = getattr(x.untyped_storage(), _NOTE, None)
    if note is None or note.spikes is None or note.spikes.shape.numel() != x.numel():
        return 1
    steps = note.spikes.shape[0]
    return steps if x.shape[0] % steps == 0 else 1


def known_spikes(x: Tensor) -> PackedSpikes | None:
    """The noted bits of ``x`` [T, B, C, ...], which may be the output in another shape; None if there are none."""
    if x.is_inference() or not can_pack(x):
        return None
    note = _note_of(x)
    if note is None or note.spikes is None:
        return None
    spikes, size = note.spikes, x.numel() // x.shape[0]
    # Each step must fill whole words, otherwise bits of two steps would share one.
    if spikes.shape.numel() != x.numel() or size % 64 or not has_dense_steps(x):
        return None
    if x.shape[0] > 1 and x.stride(0) != size:
        return None
    inner = elements_per_channel(x.shape, x.stride())
    if spikes.level.numel() > 1:
        # Another shape is valid only if every element keeps its channel, because levels are per channel.
        same = x.ndim > 2 and x.shape[2] == spikes.level.numel()
        if not same or inner != elements_per_channel(spikes.shape, spikes.stride):
            return None
    if spikes.level.dtype != x.dtype:
        return None
    if not has_no_values(x) and not may_be(x, spikes.words, spikes.level, inner):
        return None
    seen = PackedSpikes(spikes.words.view(x.shape[0], -1), spikes.level, x.shape, x.stride())
    seen.total = spikes.total
    return seen


def find_spikes(x: Tensor) -> PackedSpikes | None:
    """Does the same as `pack_spikes`, without reading every value if the scan has stored a note."""
    return known_spikes(x) or pack_spikes(x)


class _Looks:
    """Detects whether anything observes the gradient of a tensor, also after the tensor itself was deleted."""

    def __init__(self, tensor: Tensor) -> None:
        self.hooks = gradient_hooks(tensor)
        self.tensor = weakref.ref(tensor)

    def none(self) -> bool:
        tensor = self.tensor()
        return not self.hooks and (tensor is None or not tensor.retains_grad)


class Watch:
    """The elements for which a layer must compute the gradient of its input x; ``words`` as in `_Note.needed`, flat."""

    def __init__(self, words: Tensor, looks: tuple[_Looks, ...]) -> None:
        self.words = words.view(1, -1)
        self._looks = looks

    @property
    def total(self) -> int:
        """Returns how many elements these are, or how many a memory estimate assumes."""
        assumed = sizes_only(self.words)
        return int(count_words(self.words)) if assumed is None else round(64 * self.words.numel() * assumed.needed)

    def alone(self, leaf: Any) -> bool:
        """Called in the backward: returns True if only the scan will read the gradient.

        leaf: node of one of the parameters
        """
        return all(looks.none() for looks in self._looks) and runs_to_the_leaves(leaf)


def needed_places(x: Tensor) -> Watch | None:
    """Returns None if the gradient of ``x`` may be needed everywhere."""
    node: Any = x.grad_fn
    note = None if node is None else _note_of(x)
    if note is None or note.needed is None or note.node is None:
        return None
    # Walk back through at most one view to the node of the scan, and check that it really is that node.
    number, out = x.output_nr, x
    if node.name() in _VIEWS:
        out = base_of(x)
        node, number = node.next_functions[0]
    if note.node() is not node or number != 0 or out.grad_fn is not node or 64 * note.needed.numel() != x.numel():
        return None
    if note.looks is None:
        note.looks = _Looks(out)
    return Watch(note.needed, (note.looks,) if out is x else (note.looks, _Looks(x)))

"""Notes by which `save_memory` avoids keeping input currents: a norm records its scale and shift for the scan.

The record (a "note") is attached to the autograd node of the norm's output. A scan whose input has a note saves the
norm's input instead of the current, and computes the current again in the backward. All tensors stay ordinary tensors.
A current that was changed in between (by another operator, in place, by an autograd function) has no valid note and is
saved as usual.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.spec import ScanSpec
from steadyspike.core.torch_private import FakeTensor, added_with_factor_one, saved_tensor_hooks, version
from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.scan import lif_scan
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.kernels.scan.contract import Call
from steadyspike.nn.memory.current import Term
from steadyspike.nn.memory.current_scan import scan_terms
from steadyspike.nn.memory.sampling import is_sum

_NOTE = "steadyspike: the terms of this output"  # key in a node's metadata


class _Watch:
    """Detects changes of a tensor in place without keeping its memory: it shares the tensor's version counter."""

    def __init__(self, tensor: Tensor) -> None:
        self.version = version(tensor)
        self.counter: Tensor | None = None
        if not isinstance(tensor, FakeTensor):
            self.counter = tensor.detach()
            self.counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    @property
    def unchanged(self) -> bool:
        return self.counter is None or version(self.counter) == self.version


class _Note(NamedTuple):
    """A note on an autograd node: the term of output ``number`` (None once it is freed), and a watch on the output."""

    number: int
    term: Callable[[], Term | None]
    watch: _Watch


def plain_only() -> bool:
    """True if a forward must not attach notes: it has no gradient, or it is compiled, traced or recomputed.

    Activation checkpointing frees everything of a forward that it will run again, but a note would keep tensors. Both
    runs must save the same tensors.
    """
    return (
        torch.compiler.is_compiling()
        or not torch.is_grad_enabled()
        or torch.jit.is_tracing()
        or is_transformed()
        or _may_run_again()
    )


def _may_run_again() -> bool:
    """True if active saved-tensor hooks may run the forward again, as those of activation checkpointing do."""
    hooks = saved_tensor_hooks()
    return hooks is not None and getattr(hooks[0], "recomputes", True)


class _Held:
    """Holds a norm's term until the backward of its node has run; autograd frees y at the same time."""

    def __init__(self, term: Term) -> None:
        self.held: Term | None = term
        self.version = version(term.y)

    def term(self) -> Term | None:
        return self.held if self.held is not None and version(self.held.y) == self.version else None

    def let_go(self, *_: Any) -> None:
        self.held = None


def note_norm(out: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> None:
    """Notes that ``out`` [T, B, C, ...] is scale y + shift; the norm's backward keeps ``y`` anyway."""
    node: Any = out.grad_fn
    if node is not None:
        held = _Held(Term(y, scale, shift))
        node.metadata[_NOTE] = _Note(out.output_nr, held.term, _Watch(out))
        node.register_hook(held.let_go)


def note_spikes(out: Tensor) -> None:
    """Notes that ``out`` can be a term itself: the layer that reads these spikes most likely keeps them anyway."""
    node: Any = out.grad_fn
    if node is not None:
        find = weakref.ref(out)  # a strong reference would be a cycle that is never freed

        def term() -> Term | None:
            spikes = find()
            return None if spikes is None else Term(spikes)

        node.metadata[_NOTE] = _Note(out.output_nr, term, _Watch(out))


def _term(node: Any, number: int) -> Term | None:
    """The term of output ``number`` of ``node``; None if it has no valid note."""
    if node is not None and node.name() == "ExpandBackward0":
        node, number = node.next_functions[0]
    note = None if node is None else node.metadata.get(_NOTE)
    return note.term() if note is not None and note.number == number and note.watch.unchanged else None


def terms_of(x: Tensor) -> tuple[Term, ...] | None:
    """The terms whose sum is ``x``, if ``x`` is a norm's output, the sum of two, or a norm's output plus spikes."""
    node: Any = x.grad_fn
    if node is None or x.ndim < 3 or x.numel() == 0:
        return None
    sources = ((node, x.output_nr),)
    # Version 0: not changed in place since the addition.
    if added_with_factor_one(node) and version(x) == 0:
        sources = node.next_functions
    terms = tuple(term for source in sources if (term := _term(*source)) is not None)
    if len(terms) < len(sources) or not any(term.normed for term in terms):
        return None
    for y in (term.y for term in terms):
        if y.dtype != x.dtype or y.shape[1:] != x.shape[1:] or y.shape[0] not in (1, x.shape[0]):
            return None
    return terms if isinstance(x, FakeTensor) or is_sum(x, terms) else None


def scan_current(
    x: Tensor,
    u0: Tensor,
    v: Tensor,
    a: Tensor,
    spec: ScanSpec,
    *,
    membrane: bool = False,
    channelwise: bool = False,
    backend: str = "auto",
) -> ScanResult:
    """`lif_scan` that keeps the terms of ``x`` for the backward instead of ``x``, if ``x`` has notes."""
    terms = None if plain_only() else terms_of(x)
    if terms is None:
        return lif_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise, backend=backend)
    call = Call.of(spec, membrane, channelwise, choose_backend(backend, x, spec))
    return scan_terms(x, terms, u0, v, a, spec, call)

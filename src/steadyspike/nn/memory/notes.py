"""How `save_memory` avoids keeping input currents: a norm records its scale and shift, and the scan uses them.

The record (a "note") is attached to the autograd node of the norm's output. A scan whose input has a note saves the
norm's input instead of the current, and computes the current again in the backward. All tensors stay ordinary tensors.
A current that was changed on the way (by another operator, in place, by an autograd function) has no valid note and is
saved as usual.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.core.lif import ScanResult
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
    """Tells whether a tensor was changed in place, without keeping its memory: it shares the version counter."""

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
    """Attached to an autograd node: the term of its output ``number`` (None once it is gone), and a watch on it."""

    number: int
    term: Callable[[], Term | None]
    watch: _Watch


def plain_only() -> bool:
    """True where a forward attaches no notes: no gradient is wanted, or the forward is compiled, traced or recomputed.

    Activation checkpointing keeps nothing of a forward that it will run again, and a note would; what the second run
    saves must be what the first one would have.
    """
    return (
        torch.compiler.is_compiling()
        or not torch.is_grad_enabled()
        or torch.jit.is_tracing()
        or is_transformed()
        or _may_run_again()
    )


def _may_run_again() -> bool:
    """True if saved-tensor hooks are at work that may run a forward again, as activation checkpointing's do."""
    hooks = saved_tensor_hooks()
    return hooks is not None and getattr(hooks[0], "recomputes", True)


class _Held:
    """A norm's term until its node's backward has run, which is when autograd lets go of y as well."""

    def __init__(self, term: Term) -> None:
        self.held: Term | None = term
        self.version = version(term.y)

    def term(self) -> Term | None:
        return self.held if self.held is not None and version(self.held.y) == self.version else None

    def let_go(self, *_: Any) -> None:
        self.held = None


def note_norm(out: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> None:
    """``out`` [T, B, C, ...] is scale y + shift, and ``y`` is kept for its backward."""
    node: Any = out.grad_fn
    if node is not None:
        held = _Held(Term(y, scale, shift))
        node.metadata[_NOTE] = _Note(out.output_nr, held.term, _Watch(out))
        node.register_hook(held.let_go)


def note_spikes(out: Tensor) -> None:
    """``out`` is likely kept by whoever reads it, so that it may be a term as it is."""
    node: Any = out.grad_fn
    if node is not None:
        find = weakref.ref(out)  # a strong one would be a cycle that nobody collects

        def term() -> Term | None:
            spikes = find()
            return None if spikes is None else Term(spikes)

        node.metadata[_NOTE] = _Note(out.output_nr, term, _Watch(out))


def _term(node: Any, number: int) -> Term | None:
    """The term of output ``number`` of ``node``, if there is a note on it."""
    if node is not None and node.name() == "ExpandBackward0":
        node, number = node.next_functions[0]
    note = None if node is None else node.metadata.get(_NOTE)
    return note.term() if note is not None and note.number == number and note.watch.unchanged else None


def terms_of(x: Tensor) -> tuple[Term, ...] | None:
    """Terms whose sum ``x`` is, if it is a norm's output, or such a one plus another or plus spikes."""
    node: Any = x.grad_fn
    if node is None or x.ndim < 3 or x.numel() == 0:
        return None
    sources = ((node, x.output_nr),)
    # Version 0: not changed in place since it was added up.
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
    """`lif_scan`, which keeps the terms of ``x`` for the backward in place of ``x`` where they are noted."""
    terms = None if plain_only() else terms_of(x)
    if terms is None:
        return lif_scan(x, u0, v, a, spec, membrane=membrane, channelwise=channelwise, backend=backend)
    call = Call.of(spec, membrane, channelwise, choose_backend(backend, x, spec))
    return scan_terms(x, terms, u0, v, a, spec, call)

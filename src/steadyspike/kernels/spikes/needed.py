"""Where the gradient of a neuron's output is needed, and who else could see that it is 0 elsewhere.

A scan ignores the gradient of its output at a neuron that did not fire and whose surrogate derivative is 0. It notes
the other places (`NeededPlaces`) on its autograd node; a layer that reads the output directly, or through one view, may
then leave the gradient of all others at 0. Not if somebody looks at the gradient in between: a hook,
``retain_grad()``, or ``torch.autograd.grad`` for the output itself. That is asked in the backward (`Watch.alone`).
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from steadyspike.core.torch_private import base_of, gradient_hooks, runs_to_the_leaves
from steadyspike.kernels.sizes_only import sizes_only
from steadyspike.kernels.spikes.words import count_words

_NOTE = "steadyspike_needed"
_VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})  # all elements, in their order


class _Looks:
    """Who looks at the gradient of a tensor, also once the tensor itself is gone."""

    def __init__(self, tensor: Tensor) -> None:
        self.hooks = gradient_hooks(tensor)
        self.tensor = weakref.ref(tensor)

    def nobody(self) -> bool:
        tensor = self.tensor()
        return not self.hooks and (tensor is None or not tensor.retains_grad)


class NeededPlaces:
    """What a scan notes: bits as in `PackedSpikes.words`, 1 where its backward may use the gradient of the output."""

    def __init__(self, words: Tensor) -> None:
        self.words = words
        self.looks: _Looks | None = None  # at the output; made by the first layer that reads it

    def put_on(self, node: Any) -> None:
        """On the scan's autograd node, which is the ``ctx`` of its forward."""
        setattr(node, _NOTE, self)


class Watch:
    """The places where a layer has to give the gradient of its input x; ``words`` as in `NeededPlaces`, flat."""

    def __init__(self, places: NeededPlaces, looks: tuple[_Looks, ...]) -> None:
        self.words = places.words.view(1, -1)
        self._looks = looks

    @property
    def total(self) -> int:
        """How many places, or how many a memory estimate assumes."""
        assumed = sizes_only(self.words)
        return int(count_words(self.words)) if assumed is None else round(64 * self.words.numel() * assumed.needed)

    def alone(self, leaf: Any) -> bool:
        """Asked in the backward: True if only the scan will see the gradient. leaf: node of one of the parameters."""
        return all(looks.nobody() for looks in self._looks) and runs_to_the_leaves(leaf)


def needed_places(x: Tensor) -> Watch | None:
    """None if the gradient of ``x`` is needed everywhere, as far as is known."""
    node: Any = x.grad_fn
    if node is None:
        return None
    number, out = x.output_nr, x
    if node.name() in _VIEWS:
        out = base_of(x)
        node, number = node.next_functions[0]
    places: NeededPlaces | None = getattr(node, _NOTE, None)
    if places is None or number != 0 or out.grad_fn is not node or 64 * places.words.numel() != x.numel():
        return None
    if places.looks is None:
        places.looks = _Looks(out)
    return Watch(places, (places.looks,) if out is x else (places.looks, _Looks(x)))

"""Tensors with sizes but no values, on which `memory_estimate` runs a model.

The layers run the same code as on real tensors, so that they allocate and keep the same tensors. A C++ function
allocates its results and computes nothing. Results that depend on values are assumed.
"""

from __future__ import annotations

from torch import Tensor

from steadyspike.core.torch_private import FakeTensor, FakeTensorMode


class SizesOnly(FakeTensorMode):
    """The mode in which such tensors are made. Kernels run directly in it (`runs_directly`).

    firing_rate: the assumed share of neurons that fire per step
    needed: the share of elements at which a scan uses the gradient of its output; three times as many as spikes, as in
        new networks of this library (2 to 4). It changes temporary tensors only.
    """

    only_counts = True

    def __init__(self, firing_rate: float) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.firing_rate, self.needed = firing_rate, min(1.0, 3 * firing_rate)


def has_no_values(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def sizes_only(tensor: Tensor) -> SizesOnly | None:
    """Returns the mode that made ``tensor``; None for every other tensor."""
    mode = tensor.fake_mode if isinstance(tensor, FakeTensor) else None
    return mode if isinstance(mode, SizesOnly) else None

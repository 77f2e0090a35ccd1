"""LTMD (Wang et al., 2022): a learned threshold V = tanh(w)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.surrogate import Rect
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, as_spec, check_retention, over
from steadyspike.nn.parametrization import per_layer_or_channel

if TYPE_CHECKING:
    from typing import Unpack


class LTMD(Neuron):
    """M[t] = retention U[t-1] + I[t]; fires at M > V = tanh(w); hard reset, not detached; absolute rect gradient.

    threshold: V at the start, in (-1, 1); tanh(0.5) = 0.462 in the authors' code. V saturates at 1 and may become
        negative, so the relative gradients M/V - 1 ("rs", "trsg") have a pole in its range and are refused.
    retention: fixed at 0.25.

    The authors' output layer (real-valued spikes with a lateral convolution) is not part of this neuron.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("w",)
    threshold_name: ClassVar[str | None] = "w"
    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "as",
        "surrogate": Rect(1.0),
        "reset": "hard",
        "strict": True,
        "decay_input": False,
    }
    fixed_leak: Tensor

    def __init__(
        self,
        threshold: float | Sequence[float] = math.tanh(0.5),
        retention: float = 0.25,
        init: str | float | InitialPotential = "zero",
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        spec = as_spec(merged)
        if spec.family != "as":
            raise ValueError(
                f"LTMD's threshold tanh(w) may cross 0 and the {spec.family!r} gradient divides by V; use 'as'"
            )
        values = per_layer_or_channel(threshold, channels, "threshold")
        if not all(-1 < v < 1 for v in values):
            raise ValueError(f"LTMD's threshold is tanh(w), in (-1, 1); got {threshold}")
        retention = check_retention(retention, merged)
        super().__init__(spec, init, channels, merged.get("backend", "auto"))
        self.w = nn.Parameter(torch.tensor([math.atanh(v) for v in values]))
        self.register_buffer("fixed_leak", torch.full((1,), 1 - retention), persistent=False)

    @property
    def threshold(self) -> Tensor:
        return torch.tanh(self.w)

    @property
    def leak(self) -> Tensor:
        return self.fixed_leak

"""IF: a neuron that does not leak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, as_spec, over
from steadyspike.nn.parametrization import k_from_threshold, per_layer_or_channel, threshold_from_k

if TYPE_CHECKING:
    from typing import Unpack


class IF(Neuron):
    """M[t] = U[t-1] + I[t]; fire and reset as `LIF`. [T, B, ...] -> [T, B, ...].

    V = softplus(k), trained if ``learn``. The options are those of `LIF` with its defaults; decay_input is False,
    because a share of 0 of the input would leave nothing.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("k",)
    threshold_name: ClassVar[str | None] = "k"
    PUBLISHED: ClassVar[ScanOptions] = {"decay_input": False}
    no_leak: Tensor

    def __init__(
        self,
        threshold: float | Sequence[float] = 1.0,
        init: str | float | InitialPotential = "mp",
        learn: bool = True,
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        if merged["decay_input"]:
            raise ValueError("an IF neuron has leak 0, so decay_input=True would multiply its input by 0")
        super().__init__(as_spec(merged), init, channels, merged.get("backend", "auto"))
        k = [k_from_threshold(v) for v in per_layer_or_channel(threshold, channels, "threshold")]
        self.k = nn.Parameter(torch.tensor(k), requires_grad=learn)
        self.register_buffer("no_leak", torch.zeros(1), persistent=False)

    @property
    def threshold(self) -> Tensor:
        return threshold_from_k(self.k)

    @property
    def leak(self) -> Tensor:
        return self.no_leak

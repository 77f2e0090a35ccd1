"""PLIF (Fang et al., 2021): LIF with a learned time constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import ArcTan
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, over


class PLIF(LIF):
    """`LIF` with a learned tau = 1/sigmoid(w), a fixed V, a detached hard reset and the arctan gradient "as".

    tau: starts at 2 or 16 in the PLIF paper.
    ``learn`` may add "threshold". The input is scaled by 1/tau, and the neuron fires at M >= V.
    """

    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "as",
        "surrogate": ArcTan(2.0),
        "reset": Reset("hard", detach=True),
    }

    def __init__(
        self,
        tau: float | Sequence[float] = 2.0,
        threshold: float | Sequence[float] = 1.0,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = ("tau",),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        super().__init__(threshold, tau, init=init, learn=learn, channels=channels, **merged)
